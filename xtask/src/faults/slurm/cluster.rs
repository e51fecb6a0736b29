//! A SLURM cluster of one node, on this machine and only for one chore.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use xtask::command::{read, run as run_command};

/// Timeout for a daemon to answer.
const START: Duration = Duration::from_secs(30);
/// Timeout for a requeued job to end.
const JOB: Duration = Duration::from_secs(600);

/// munge, a controller and a node, with all their files in a folder. Dropping it ends them.
pub(super) struct Cluster {
    config: PathBuf,
    /// The daemon that was started last is ended first.
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts the daemons of a cluster with `n_cpus`.
    pub(super) fn start(folder: &Path, n_cpus: u32) -> Result<Cluster> {
        let host = read(&mut Command::new("hostname"))?.trim().to_string();
        let place = folder.display();
        open_to_all(folder)?;
        let key: Vec<u8> = (0..1024).map(|i| (i * 31 % 251) as u8).collect();
        fs::write(folder.join("munge.key"), key)?;
        run_command(Command::new("chmod").arg("400").arg(folder.join("munge.key")))?;
        for name in ["state", "spool"] {
            fs::create_dir(folder.join(name))?;
        }
        let config = folder.join("slurm.conf");
        let values =
            [("{host}", &host), ("{place}", &place.to_string()), ("{n_cpus}", &n_cpus.to_string())];
        let fill = |text: String, (name, value): &(&str, &String)| text.replace(name, value);
        fs::write(&config, values.iter().fold(include_str!("slurm.conf").to_owned(), fill))?;
        let mut cluster = Cluster { config, daemons: Vec::new() };
        let munge = ["key-file", "socket", "pid-file", "log-file", "seed-file"]
            .map(|what| format!("--{what}={place}/munge.{}", what.trim_end_matches("-file")));
        let foreground = ["--foreground".to_string()];
        cluster.daemon(folder, "munged", &[&foreground[..], &munge[..]].concat())?;
        let socket = folder.join("munge.socket");
        await_that("munged", || Ok(socket.exists()))?;
        for name in ["slurmctld", "slurmd"] {
            cluster.daemon(folder, name, &["-D".into()])?;
        }
        await_that("the node", || {
            let mut sinfo = cluster.command("sinfo", folder);
            Ok(read(sinfo.args(["--noheader", "--format=%T"])).is_ok_and(|t| t.trim() == "idle"))
        })
        .with_context(|| logs(folder))?;
        Ok(cluster)
    }

    fn daemon(&mut self, folder: &Path, name: &str, words: &[String]) -> Result<()> {
        let log = fs::File::create(folder.join(format!("{name}.log")))?;
        let mut command = self.command(name, folder);
        let started =
            command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.daemons.push(started.with_context(|| format!("cannot start {name}; it needs root"))?);
        Ok(())
    }

    /// A command that finds the cluster.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", &self.config).current_dir(folder);
        command
    }

    /// Waits for a job. Returns the number of its restarts. SLURM would wait two minutes before
    /// each.
    pub(super) fn await_job(&self, id: &str, work: &Path) -> Result<u32> {
        let deadline = Instant::now() + JOB;
        loop {
            let job = read(self.command("scontrol", work).args(["show", "job", "--oneliner", id]))?;
            let value = |key: &str| {
                let key = format!(" {key}=");
                job.split_once(&key)?.1.split_whitespace().next()
            };
            if value("Reason") == Some("BeginTime") {
                let job_id = format!("JobId={id}");
                let mut hurry = self.command("scontrol", work);
                // it may have begun
                let _ = hurry.args(["update", &job_id, "StartTime=now"]).status();
            }
            match value("JobState") {
                Some("COMPLETED") => return Ok(value("Restarts").unwrap_or("0").parse()?),
                Some("PENDING" | "CONFIGURING" | "RUNNING" | "COMPLETING") => {}
                state => bail!("the job ended as {state:?}"),
            }
            ensure!(Instant::now() < deadline, "the job does not end: {job}");
            sleep(Duration::from_secs(2));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.command("scancel", Path::new("/")).args(["--user", "root"]).status();
        for daemon in self.daemons.iter_mut().rev() {
            // On request, they end the processes that they started.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
    }
}

/// munge accepts no socket in a folder that others cannot read.
fn open_to_all(folder: &Path) -> Result<()> {
    run_command(Command::new("chmod").arg("755").arg(folder))
}

fn await_that(what: &str, mut is_there: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + START;
    while !is_there()? {
        ensure!(Instant::now() < deadline, "{what} does not answer");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn logs(folder: &Path) -> String {
    let log = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
    format!("slurmctld:\n{}\nslurmd:\n{}", log("slurmctld.log"), log("slurmd.log"))
}

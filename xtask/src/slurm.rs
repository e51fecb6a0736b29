//! Training under SLURM: a cluster of one node, on this machine and for this chore alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::{METRICS, metrics};
use crate::command::{install, read, run as run_command};
use crate::mpi::build;

/// Ranks, one a task.
const RANKS: &str = "4";
/// For a daemon to answer.
const START: Duration = Duration::from_secs(30);
/// For a job that is queued again to have ended.
const JOB: Duration = Duration::from_secs(600);
/// Seconds that the job's training takes, more than it is given at once.
const TRAINING_S: f64 = 75.0;
/// Steps after which the speed of this machine is known.
const N_TRIED: u64 = 50;

/// Trains by `srun` as by threads, then lets `chimera slurm`'s script run out of time, queue itself again
/// and go on.
pub(crate) fn run() -> Result<()> {
    if read(Command::new("slurmctld").arg("-V")).is_err()
        || read(Command::new("munged").arg("-V")).is_err()
    {
        install(&["slurm-wlm", "munge"]).context("SLURM is missing: its daemons, and munge")?;
    }
    let chimera = build(false)?.program;
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::start(folder.path(), &chimera)?;
    let work = folder.path().join("work");
    fs::create_dir(&work)?;
    fs::write(work.join("text"), "The pipeline flushes, and both directions meet. ".repeat(500))?;
    let threads = |name: &str, steps: u64| {
        write_settings(&work, name, steps)?;
        let mut command = cluster.command(&chimera, &work);
        let file = format!("{name}.toml");
        run_command(command.args(["train", "--transport", "threads", "--config", &file]))
    };

    threads("tried", N_TRIED)?;
    write_settings(&work, "ranks", N_TRIED)?;
    let mut srun = cluster.command("srun", &work);
    srun.args(["-n", RANKS, "--mpi=pmix"]).arg(&chimera);
    run_command(srun.args(["train", "--config", "ranks.toml"]))?;
    let tried = losses(&work.join("tried"))?;
    ensure!(tried == losses(&work.join("ranks"))?, "srun trains otherwise than threads do");
    println!("srun: {N_TRIED} steps, to the bit those of threads");

    let steps = (TRAINING_S / seconds_of_a_step(&work.join("ranks"))?).ceil() as u64;
    threads("whole", steps)?;
    write_settings(&work, "job", steps)?;
    let mut slurm = cluster.command(&chimera, &work);
    let script = read(slurm.args(["slurm", "job.toml", "--time", "1", "--notice", "30"]))?;
    fs::write(work.join("job.sh"), script)?;
    let mut sbatch = cluster.command("sbatch", &work);
    let id = read(sbatch.args(["--parsable", "--output", "job.out", "job.sh"]))?;
    let restarts = cluster.await_job(id.trim(), &work)?;
    let said = fs::read_to_string(work.join("job.out"))?;
    ensure!(restarts > 0, "the job was not queued again:\n{said}");
    ensure!(said.contains("stopped on request"), "the job was not asked to stop:\n{said}");
    let same = losses(&work.join("whole"))? == losses(&work.join("job"))?;
    ensure!(same, "a job that was queued again trains otherwise than one that was not:\n{said}");
    println!("sbatch: {steps} steps, queued again {restarts} times, to the bit those of one run");
    Ok(())
}

/// A small training into the folder `name`.
fn write_settings(work: &Path, name: &str, steps: u64) -> Result<()> {
    let settings = format!(
        "data = [\"text\"]\nout = \"{name}\"\nsave-every = 1000000\ndepth = {RANKS}\nlayers = 4\n\
         hidden = 64\nheads = 2\ncontext = 64\nmicro-batch-size = 2\nthreads = 1\nsteps = {steps}\n"
    );
    fs::write(work.join(format!("{name}.toml")), settings).context("cannot write settings")
}

/// The losses and gradient norms of a run's steps, as text.
fn losses(run: &Path) -> Result<Vec<[String; 3]>> {
    let step = |step: Value| ["step", "loss", "grad_norm"].map(|key| step[key].to_string());
    Ok(metrics(&run.join(METRICS))?.into_iter().map(step).collect())
}

fn seconds_of_a_step(run: &Path) -> Result<f64> {
    let steps = metrics(&run.join(METRICS))?;
    let seconds: f64 = steps.iter().filter_map(|step| step["step_s"].as_f64()).sum();
    ensure!(seconds > 0.0, "no times in {}", run.display());
    Ok(seconds / steps.len() as f64)
}

/// munge, a controller and a node, with all their files in a folder; they end with this.
struct Cluster {
    config: PathBuf,
    /// With the folder of the command in front.
    path: String,
    /// The last started is ended first.
    daemons: Vec<Child>,
}

impl Cluster {
    fn start(folder: &Path, chimera: &Path) -> Result<Cluster> {
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
        // As many CPUs as tasks, however many there are; no cgroups, which containers have not.
        fs::write(
            &config,
            format!(
                "ClusterName=chimera\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
                 AuthType=auth/munge\nAuthInfo=socket={place}/munge.socket\nCredType=cred/munge\n\
                 SlurmctldPort=16817\nSlurmdPort=16818\n\
                 StateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool\n\
                 SlurmctldPidFile={place}/slurmctld.pid\nSlurmdPidFile={place}/slurmd.pid\n\
                 ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
                 JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
                 SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
                 SlurmdParameters=config_overrides\nReturnToService=2\n\
                 NodeName={host} NodeAddr=127.0.0.1 CPUs={RANKS} State=UNKNOWN\n\
                 PartitionName=all Nodes={host} Default=YES State=UP\n"
            ),
        )?;
        let bin = chimera.parent().context("the command is in no folder")?.display();
        let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
        let mut cluster = Cluster { config, path, daemons: Vec::new() };
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

    /// A command that finds the cluster, and `chimera`.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", &self.config).env("PATH", &self.path).current_dir(folder);
        command
    }

    /// Waits for a job; returns how often it was started again. SLURM would let two minutes pass before each
    /// start.
    fn await_job(&self, id: &str, work: &Path) -> Result<u32> {
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
                let _ = hurry.args(["update", &job_id, "StartTime=now"]).status(); // it may have begun
            }
            match value("JobState") {
                Some("COMPLETED") => return Ok(value("Restarts").unwrap_or("0").parse()?),
                Some("PENDING" | "CONFIGURING" | "RUNNING" | "COMPLETING") => {}
                state => bail!(
                    "the job ended as {state:?}:\n{}",
                    fs::read_to_string(work.join("job.out")).unwrap_or_default()
                ),
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
            // Asked, they end what they have started.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
    }
}

/// munge takes no socket in a folder that others cannot look into.
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

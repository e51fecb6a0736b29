//! `chimera slurm`: writes a batch script for a configuration.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cli::parts::schedule::costs::{may_be_negative, whole_in};
use crate::cli::parts::terminal::console::{print, warn};
use crate::device::Device;
use crate::formats::checkpoint::AUTO;
use crate::run::SETTINGS;
use crate::run::outside::OnDisk;
use crate::settings::{Config, Layers, Settings, Survive, Transport, quoted};

/// Prints a batch script for SLURM that requeues itself
///
/// Its job saves a checkpoint before its time limit.
#[derive(Args)]
#[command(mut_args(|arg| may_be_negative(arg, &[])))]
pub(crate) struct Slurm {
    /// TOML file, as `chimera train --config` takes it; it must name `out` and `save-every`
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Number of machines [default: SLURM's choice]
    #[arg(long, value_name = "COUNT", value_parser = whole_in(1..=u32::MAX))]
    nodes: Option<u32>,
    /// Partition of the cluster [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Time limit of the job in SLURM's notation, e.g. 90 (minutes), 24:00:00 or 2-12 (days and hours)
    #[arg(long, value_name = "TIME", default_value = "24:00:00")]
    time: TimeLimit,
    /// Seconds before the time limit at which the run stops; more than a step and a checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = whole_in(1..=65_535))]
    notice: u32,
    /// GPUs per rank
    #[arg(long, value_name = "COUNT", value_parser = whole_in(1..=u32::MAX))]
    gpus_per_rank: Option<u32>,
    /// MPI plugin of srun; `srun --mpi=list` lists those of the cluster
    #[arg(long, value_name = "KIND", default_value = "pmix")]
    mpi: String,
    /// Spare tasks for processes that replace dead ranks [default: 1 with `survive` respawn, otherwise 0]
    #[arg(long, value_name = "COUNT")]
    spare: Option<u32>,
}

impl Slurm {
    pub(crate) fn run(self) -> Result<()> {
        self.check()?;
        let file = self.config.to_str().filter(|file| !file.contains(char::is_control));
        let file = file.with_context(|| {
            let file = self.config.display().to_string();
            format!("{file:?} cannot stand in a batch script: rename it")
        })?;
        let settings = Settings::default();
        let config = Layers { config: Some(self.config.clone()), settings }.resolve(&OnDisk)?;
        self.check_config(file, &config)?;
        // srun no longer takes this from the job (since SLURM 22.05), and ranks would divide the
        // cores by themselves.
        let threads = config.devices.threads;
        let n_ranks = config.schedule.width * config.schedule.depth;
        let transport = match config.devices.transport {
            Transport::Nccl => "nccl",
            _ => "mpi",
        };
        let fork = config.checkpoints.resume.as_ref().filter(|resume| *resume != AUTO);
        let resume = if fork.is_some() { "\"$resume\"" } else { AUTO };
        let train = format!(
            "chimera train --config {} --transport {transport} --threads {threads} --resume {resume}",
            quoted(file)
        );
        let first = match (fork, &config.output.out) {
            (Some(fork), Some(out)) => format!(
                "\n# The first start begins with the checkpoint of another run.\n\
                 resume=auto\n\
                 [ -e {} ] || resume={}\n",
                quoted(out.join(SETTINGS).display()),
                quoted(fork)
            ),
            _ => String::new(),
        };
        let launch = if config.devices.survive == Survive::Off {
            launched(&self.mpi, threads, &train)
        } else {
            surviving(n_ranks, &train)
        };
        let options = self.options(&config);
        print(format!(
            "#!/bin/sh\n\
             # {} x {} worker(s); submit it where the files that {file} names are.\n\
             {options}{first}\n\
             {launch}exit $code",
            config.schedule.width, config.schedule.depth,
        ))
    }

    /// Refuses options that cannot stand in a batch script, and a notice as long as the job.
    fn check(&self) -> Result<()> {
        for (option, value) in
            [("--partition", self.partition.as_ref()), ("--mpi", Some(&self.mpi))]
        {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_:,.".contains(c);
            let sound = value.is_none_or(|value| !value.is_empty() && value.chars().all(is_plain));
            ensure!(sound, "{option}: letters, digits and -_:,. alone can stand in a batch script");
        }
        let TimeLimit { seconds, .. } = self.time;
        ensure!(
            seconds.is_none_or(|seconds| seconds > u64::from(self.notice)),
            "--notice {} leaves the job no time: choose fewer seconds, or a --time of more than {}",
            self.notice,
            self.time
        );
        Ok(())
    }

    /// Refuses settings that a job cannot be queued again with.
    fn check_config(&self, file: &str, config: &Config) -> Result<()> {
        ensure!(
            config.output.out.is_some() && config.checkpoints.save_every > 0,
            "{file} must name `out`, the folder of the run on a file system that all nodes share, and \
             `save-every`: a job that is queued again goes on from there"
        );
        ensure!(
            config.devices.survive != Survive::Off || self.spare.is_none(),
            "--spare is for processes that take dead ranks' places: let {file} say `survive`, or leave --spare out"
        );
        let devices = Device::named(&config.devices.device, config.schedule.depth)?;
        if !devices.iter().all(|device| device.is_host()) && self.gpus_per_rank.is_none() {
            warn(&format!(
                "the workers of {file} compute on GPUs, and the job asks for none: add --gpus-per-rank 1, unless its nodes are given \
                 out with all of theirs"
            ));
        }
        Ok(())
    }

    /// Returns the lines of the script with the job's options.
    fn options(&self, config: &Config) -> String {
        let survive = config.devices.survive;
        let spare = self.spare.unwrap_or((survive == Survive::Respawn).into());
        let n_ranks = config.schedule.width * config.schedule.depth;
        // With `survive` the launcher runs in the batch script, and SLURM only sends its signal to
        // job steps unless asked.
        let signalled = if survive == Survive::Off { "" } else { "B:" };
        let mut options = vec![
            "--job-name=chimera".to_string(),
            format!("--ntasks={}", n_ranks + spare as usize),
            format!("--cpus-per-task={}", config.devices.threads),
            format!("--time={}", self.time),
            format!("--signal={signalled}TERM@{}", self.notice),
            "--requeue".to_string(),
            "--open-mode=append".to_string(),
        ];
        options.extend(self.nodes.map(|n| format!("--nodes={n}")));
        options.extend(self.partition.as_ref().map(|name| format!("--partition={name}")));
        options.extend(self.gpus_per_rank.map(|n| format!("--gpus-per-task={n}")));
        options.iter().map(|option| format!("#SBATCH {option}\n")).collect()
    }
}

/// The time limit of a job.
#[derive(Clone, PartialEq, Debug)]
struct TimeLimit {
    /// The text in SLURM's notation.
    text: String,
    /// `None` if there is no limit.
    seconds: Option<u64>,
}

impl FromStr for TimeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeLimit, String> {
        let endless = ["unlimited", "infinite"].iter().any(|word| text.eq_ignore_ascii_case(word));
        let seconds = if endless { Some(0) } else { seconds(text) };
        let seconds = seconds.ok_or_else(|| {
            format!(
                "`{text}` is no time that SLURM reads: write minutes, minutes:seconds, hours:minutes:seconds, days-hours, \
                 days-hours:minutes, days-hours:minutes:seconds, or UNLIMITED"
            )
        })?;
        // A time of zero means no limit in SLURM.
        Ok(TimeLimit { text: text.into(), seconds: Some(seconds).filter(|seconds| *seconds > 0) })
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses a time in SLURM's notation to seconds.
fn seconds(text: &str) -> Option<u64> {
    let number = |part: &str| {
        let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u32>().ok().filter(|_| is_number).map(u64::from)
    };
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(number).collect::<Option<Vec<u64>>>()?;
    let [hours, minutes, seconds] = match (days, &parts[..]) {
        (Some(_), [hours]) => [*hours, 0, 0],
        (Some(_), [hours, minutes]) => [*hours, *minutes, 0],
        (None, [minutes]) => [0, *minutes, 0],
        (None, [minutes, seconds]) => [0, *minutes, *seconds],
        (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
        _ => return None,
    };
    Some(((days.unwrap_or(0) * 24 + hours) * 60 + minutes) * 60 + seconds)
}

/// Starts ranks with srun; all of them end when one does.
fn launched(mpi: &str, threads: usize, train: &str) -> String {
    // After the first rank has ended the others have half a minute, which is enough to name a dead
    // rank and to exit with 75. (With `--kill-on-bad-exit` ranks would be killed before that, and
    // srun would return 137.)
    format!(include_str!("slurm/launched.sh"), mpi = mpi, threads = threads, train = train)
}

/// Starts ranks that survive deaths with Open MPI's launcher on the job's nodes, since srun with
/// PMIx would end all of them.
///
/// Replacements start in spare tasks, and after those are used up they share the slots of others,
/// because Open MPI 5.0 does not free the slot of a dead process. Processes are not bound, since a
/// spawned one would be bound to the cores of others. If a whole node fails, SLURM requeues the
/// job: the launcher of Open MPI 5.0 then ends with exit code 0.
fn surviving(n_ranks: usize, train: &str) -> String {
    // A rank that gets the signal tells all others to stop, whereas the launcher would soon kill
    // them. The launcher's exit code may be that of a rank that was killed and replaced.
    format!(include_str!("slurm/surviving.sh"), n_ranks = n_ranks, train = train)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_slurm_reads() {
        for (text, seconds) in [
            ("90", Some(5400)),
            ("1:30", Some(90)),
            ("24:00:00", Some(86_400)),
            ("2-12", Some(216_000)),
            ("1-2:03", Some(93_780)),
            ("1-02:03:04", Some(93_784)),
            ("0", None),
            ("UNLIMITED", None),
            ("infinite", None),
        ] {
            assert_eq!(text.parse(), Ok(TimeLimit { text: text.into(), seconds }), "{text}");
        }
        for text in [
            "",
            "abc",
            "1h",
            "-1",
            "+1",
            "1-",
            "1:",
            "1::2",
            "1:2:3:4",
            "1-2:3:4:5",
            "1.5",
            "99999999999",
        ] {
            assert!(text.parse::<TimeLimit>().is_err(), "{text}");
        }
    }
}

//! `chimera slurm`: a batch script for a configuration.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cli::parts::console::{print, quoted};
use crate::run::outside::OnDisk;
use crate::settings::{Layers, Settings};

/// Prints a batch script for SLURM, whose job saves a checkpoint before its time is over and queues itself again
#[derive(Args)]
pub(crate) struct Slurm {
    /// TOML file, as `chimera train --config` takes it; it must name `out` and `save-every`
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Machines [default: as SLURM finds room]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Partition of the cluster [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Time that the job may take, as SLURM writes it
    #[arg(long, value_name = "TIME", default_value = "24:00:00")]
    time: String,
    /// Seconds before the end at which the run is asked to stop: more than a step and a checkpoint take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=65535))]
    notice: u32,
    /// GPUs of a rank, for which SLURM is asked
    #[arg(long, value_name = "COUNT")]
    gpus_per_rank: Option<u32>,
    /// How srun starts MPI: `srun --mpi=list` tells what the cluster has
    #[arg(long, value_name = "KIND", default_value = "pmix")]
    mpi: String,
}

impl Slurm {
    pub(crate) fn run(self) -> Result<()> {
        for (option, value) in [
            ("--partition", self.partition.as_ref()),
            ("--time", Some(&self.time)),
            ("--mpi", Some(&self.mpi)),
        ] {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_:,.".contains(c);
            let sound = value.is_none_or(|value| !value.is_empty() && value.chars().all(is_plain));
            ensure!(sound, "{option}: letters, digits and -_:,. alone can stand in a batch script");
        }
        let file = self.config.to_str().filter(|file| !file.contains(char::is_control));
        let file = file.with_context(|| {
            let file = self.config.display().to_string();
            format!("{file:?} cannot stand in a batch script: rename it")
        })?;
        let settings = Settings::default();
        let config = Layers { config: Some(self.config.clone()), settings }.resolve(&OnDisk)?;
        // srun takes it from the job no longer (SLURM 22.05), and ranks would share out the cores by themselves.
        let threads = config.threads;
        ensure!(
            config.out.is_some() && config.save_every > 0,
            "{file} must name `out`, the folder of the run on a file system that all nodes share, and \
             `save-every`: a job that is queued again goes on from there"
        );
        let mut head = vec![
            "--job-name=chimera".to_string(),
            format!("--ntasks={}", config.width * config.depth),
            format!("--cpus-per-task={threads}"),
            format!("--time={}", self.time),
            format!("--signal=TERM@{}", self.notice),
            "--requeue".to_string(),
            "--open-mode=append".to_string(),
        ];
        head.extend(self.nodes.map(|n| format!("--nodes={n}")));
        head.extend(self.partition.map(|name| format!("--partition={name}")));
        head.extend(self.gpus_per_rank.map(|n| format!("--gpus-per-task={n}")));
        // After the first rank has ended, the others have half a minute: enough to name one that died, and to end with
        // 75. (`--kill-on-bad-exit` would kill ranks that are about to, and srun would say 137.)
        let head: String = head.iter().map(|option| format!("#SBATCH {option}\n")).collect();
        print(format!(
            "#!/bin/sh\n\
             # {} x {} worker(s); submit it where the files that {file} names are.\n\
             {head}\n\
             srun --mpi={} --wait=30 --cpus-per-task={threads} --cpu-bind=cores \\\n  \
             chimera train --config {} --transport mpi --threads {threads} --resume auto\n\
             code=$?\n\
             # 75: saved before the time was over.\n\
             [ $code -eq 75 ] && exec scontrol requeue \"$SLURM_JOB_ID\"\n\
             exit $code",
            config.width,
            config.depth,
            self.mpi,
            quoted(file),
        ))
    }
}

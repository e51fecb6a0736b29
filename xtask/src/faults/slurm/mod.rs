//! Training under SLURM: a cluster of one node, on this machine and only for this chore.

mod cluster;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use cluster::Cluster;
use xtask::command::{install, read, run as run_command};
use xtask::measure::{METRICS, figures, metrics};
use xtask::mpi_library::build;
use xtask::open_mpi_5::OpenMpi5;

/// Ranks, one per task.
const RANKS: u32 = 4;
/// Tasks of a job whose ranks are replaced, with one more for the replacement.
const TASKS: u32 = RANKS + 1;
/// Seconds that the job's training takes, more than its first time limit.
const TRAINING_S: f64 = 75.0;
/// Steps after which the speed of this machine is known.
const N_TRIED: u64 = 50;

/// A rank that dies in the job, and the point of its death.
const STRIKE: &str = "1 KILL at 30.5";

/// Trains with `srun` as with threads. Then the script of `chimera slurm` runs out of time,
/// requeues itself and goes on. Finally such a job survives the death of a rank.
pub(crate) fn run() -> Result<()> {
    if read(Command::new("slurmctld").arg("-V")).is_err()
        || read(Command::new("munged").arg("-V")).is_err()
    {
        install(&["slurm-wlm", "munge"]).context("SLURM is missing: its daemons, and munge")?;
    }
    let chimera = build(false)?.program;
    let folder = tempfile::tempdir()?;
    let open_mpi_5 = OpenMpi5::install()?;
    let surviving = open_mpi_5.chimera()?;
    let cluster = Cluster::start(folder.path(), TASKS)?;
    let work = folder.path().join("work");
    fs::create_dir(&work)?;
    fs::write(work.join("text"), "The pipeline flushes, and both directions meet. ".repeat(500))?;
    let threads = |name: &str, steps: u64| {
        write_settings(&work, name, steps, "")?;
        let mut command = Command::new(&chimera);
        let file = format!("{name}.toml");
        command.args(["train", "--transport", "threads", "--config", &file]);
        run_command(command.current_dir(&work))
    };

    threads("tried", N_TRIED)?;
    write_settings(&work, "ranks", N_TRIED, "")?;
    let mut srun = cluster.command("srun", &work);
    srun.args(["-n", &RANKS.to_string(), "--mpi=pmix"]).arg(&chimera);
    run_command(srun.args(["train", "--config", "ranks.toml"]))?;
    let losses = |run: &str| figures(&work.join(run), ["step", "loss", "grad_norm"]);
    let tried = losses("tried")?;
    ensure!(tried == losses("ranks")?, "srun trains otherwise than threads do");
    println!("srun: {N_TRIED} steps, to the bit those of threads");

    let steps = (TRAINING_S / seconds_of_a_step(&work.join("ranks"))?).ceil() as u64;
    threads("whole", steps)?;
    let undisturbed = losses("whole")?;

    write_settings(&work, "job", steps, "")?;
    let (said, restarts) = run_job(&cluster, &work, &chimera, "job", |sbatch| sbatch)?;
    let same = undisturbed == losses("job")?;
    ensure!(same, "a job that was queued again trains otherwise than one that was not:\n{said}");
    println!("sbatch: {steps} steps, queued again {restarts} times, to the bit those of one run");

    write_settings(&work, "survivor", steps, "survive = \"respawn\"\n")?;
    let struck = work.join("struck");
    let strike = format!("{STRIKE} {}", struck.display());
    let bin = open_mpi_5.environment.join("bin");
    let with_death = |sbatch: Command| {
        let mut sbatch = in_path(sbatch, &bin);
        sbatch.envs(open_mpi_5.variables()).env("CHIMERA_STRIKE", &strike);
        sbatch
    };
    let (said, restarts) = run_job(&cluster, &work, &surviving, "survivor", with_death)?;
    ensure!(struck.exists(), "no rank was killed:\n{said}");
    ensure!(said.contains("took the place of rank"), "nobody took its place:\n{said}");
    let same = undisturbed == losses("survivor")?;
    ensure!(
        same,
        "a job in which a rank died trains otherwise than one in which none did:\n{said}"
    );
    println!(
        "sbatch, a rank killed: {steps} steps, queued again {restarts} times, to the bit those of one run"
    );
    Ok(())
}

/// Runs a job that trains with the settings `name` for longer than its time limit. Returns its
/// output, and the number of times it was requeued.
fn run_job(
    cluster: &Cluster,
    work: &Path,
    chimera: &Path,
    name: &str,
    prepared: impl Fn(Command) -> Command,
) -> Result<(String, u32)> {
    let mut slurm = Command::new(chimera);
    let settings = format!("{name}.toml");
    slurm.args(["slurm", &settings, "--time", "1", "--notice", "30"]).current_dir(work);
    let (script, output) = (format!("{name}.sh"), format!("{name}.out"));
    fs::write(work.join(&script), read(&mut slurm)?)?;
    let bin = chimera.parent().context("the command is in no folder")?;
    let mut sbatch = prepared(in_path(cluster.command("sbatch", work), bin));
    let id = read(sbatch.args(["--parsable", "--output", &output, &script]))?;
    let ended = cluster.await_job(id.trim(), work);
    let said = fs::read_to_string(work.join(output)).unwrap_or_default();
    let restarts = ended.with_context(|| said.clone())?;
    ensure!(restarts > 0, "the job was not queued again:\n{said}");
    ensure!(said.contains("stopped on request"), "the job was not asked to stop:\n{said}");
    Ok((said, restarts))
}

/// Puts a folder at the front of `command`'s search path for programs.
fn in_path(mut command: Command, folder: &Path) -> Command {
    let set = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
    let path = set.map_or_else(|| std::env::var_os("PATH").unwrap_or_default(), Into::into);
    let folders = [folder.to_owned()].into_iter().chain(std::env::split_paths(&path));
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command
}

/// Writes settings of a small training into the folder `name`.
fn write_settings(work: &Path, name: &str, steps: u64, more: &str) -> Result<()> {
    let settings = format!(
        "data = [\"text\"]\nout = \"{name}\"\nsave-every = 1000000\ndepth = {RANKS}\nlayers = 4\n\
         hidden = 64\nheads = 2\ncontext = 64\nmicro-batch-size = 2\nthreads = 1\nsteps = {steps}\n{more}"
    );
    fs::write(work.join(format!("{name}.toml")), settings).context("cannot write settings")
}

fn seconds_of_a_step(run: &Path) -> Result<f64> {
    let steps = metrics(&run.join(METRICS))?;
    let seconds: f64 = steps.iter().filter_map(|step| step["step_s"].as_f64()).sum();
    ensure!(seconds > 0.0, "no times in {}", run.display());
    Ok(seconds / steps.len() as f64)
}

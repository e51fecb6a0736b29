//! A training over MPI in which a rank is struck (killed, stopped, or made to panic), and its
//! remains.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, metadata, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

mod left;
pub mod points;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

pub use self::left::processes;
use self::left::{nothing_is_left, unfinished};
use crate::measure::figures;
use crate::mpi_library::launch;

/// Four ranks of Chimera, whose messages are larger than MPI's eager limit.
const OPTIONS: &str = "--depth 4 --micro-batches 4 --layers 4 --hidden 32 --heads 2 --context 64 \
     --micro-batch-size 2 --threads 1 --steps 6 --save-every 2 --resume auto";
const N_RANKS: usize = 4;
const N_STEPS: usize = 6;
/// All-gathers of the start before the one with the run's folder.
const N_BEFORE_FOLDER: usize = 5;
/// Messages that a rank sends in an all-gather of all ranks.
pub const N_ROUNDS: usize = N_RANKS.ilog2() as usize;
/// A run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The fault of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Blow {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// A panic of its thread.
    Panic,
}

impl Blow {
    /// All kinds.
    pub const ALL: [Blow; 3] = [Blow::Kill, Blow::Stop, Blow::Panic];

    /// Name, exit code of the other ranks, and words of their errors besides the struck rank.
    fn row(self) -> (&'static str, u8, &'static str) {
        match self {
            Blow::Kill => ("KILL", 5, "ended"),
            Blow::Stop => ("STOP", 6, "does not answer"),
            Blow::Panic => ("PANIC", 101, "panicked: struck"),
        }
    }

    /// Exit code of the other ranks.
    pub fn code(self) -> u8 {
        self.row().1
    }
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().0)
    }
}

impl FromStr for Blow {
    type Err = String;

    fn from_str(name: &str) -> Result<Blow, String> {
        let known = Blow::ALL.into_iter().find(|blow| blow.row().0 == name);
        known.ok_or_else(|| format!("unknown blow `{name}`: choose KILL, STOP or PANIC"))
    }
}

/// A rank, the blow, and the point.
pub struct Case {
    /// The rank that is struck.
    pub rank: usize,
    /// The blow.
    pub blow: Blow,
    /// The point, as the command takes it.
    pub point: String,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {} {}", self.rank, self.blow, self.point)
    }
}

impl Case {
    /// Returns true if the ranks do not know the folder of the run yet. It comes with the sixth
    /// all-gather.
    fn is_early(&self) -> bool {
        let n_early = (N_BEFORE_FOLDER + 1) * N_ROUNDS;
        let early = |point: &str| (0..n_early).any(|n| format!("gather start {n}") == point);
        matches!(self.point.as_str(), "start" | "met") || early(&self.point)
    }

    /// Returns true if the ranks are at the instructions of a step.
    fn is_within_a_step(&self) -> bool {
        self.point.starts_with("at ") || self.point.starts_with("sent ")
    }
}

/// The end of the other ranks.
pub struct Ended {
    /// The times from the strike to each error file.
    pub detections: Vec<Duration>,
}

/// Strikes runs with one setting.
pub struct Site {
    launcher: String,
    program: PathBuf,
    data: TempDir,
    /// The losses of an undisturbed run.
    losses: Vec<[String; 3]>,
    setting: Setting,
}

/// Timeouts and environment variables of runs.
pub struct Setting {
    /// Time in which the other ranks write their errors. A stopped rank is waited for first.
    pub soon: Duration,
    /// Options for the timeouts of ranks.
    pub timeouts: &'static str,
    /// Environment variables of the launcher.
    pub environment: Vec<(&'static str, PathBuf)>,
}

impl Site {
    /// Makes data to train on, and the losses of an undisturbed run.
    pub fn build(launcher: &str, program: &Path, setting: Setting) -> Result<Site> {
        let data = TempDir::new()?;
        write_text(data.path())?;
        let (launcher, program) = (launcher.to_string(), program.to_path_buf());
        let mut site = Site { launcher, program, data, losses: Vec::new(), setting };
        let folder = TempDir::new()?;
        let code = wait(site.start(folder.path(), None)?)?;
        ensure!(code == Some(0), "the undisturbed run ends with {code:?}: {}", said(folder.path()));
        site.losses = losses(folder.path());
        ensure!(
            site.losses.len() == N_STEPS,
            "the undisturbed run has {} steps",
            site.losses.len()
        );
        Ok(site)
    }

    /// Runs a case to its end, and then the run again to its own end. `None` if the point was not
    /// reached.
    pub fn strike(&self, case: &Case) -> Result<Option<Ended>> {
        let folder = TempDir::new()?;
        let folder = folder.path();
        let code = wait(self.start(folder, Some(case))?)?;
        let Ok(struck) = metadata(folder.join("struck")).and_then(|file| file.modified()) else {
            ensure!(code == Some(0), "it ends with {code:?} before the strike: {}", said(folder));
            return Ok(None);
        };
        let errors = errors(folder)?;
        let is_left = case.point == "left";
        ensure!(is_left || code != Some(0), "it ends with 0");
        let mut detections = Vec::new();
        for (rank, (error, written)) in &errors {
            let message = error["message"].as_str().unwrap_or_default();
            ensure!(message.contains(case.blow.row().2), "rank {rank} says {message}");
            // A stopped rank reports itself when the launcher wakes it to end it, and so does one
            // that panics.
            if *rank == case.rank {
                continue;
            }
            let named = (error["code"].as_u64(), error["peer"].as_u64());
            let expected = (Some(case.blow.code().into()), Some(case.rank as u64));
            ensure!(named == expected, "rank {rank} says {error}");
            let took = written.duration_since(struck).unwrap_or_default();
            let is_soon = case.blow == Blow::Stop || took < self.setting.soon;
            ensure!(is_soon, "rank {rank} says so after {took:?}");
            detections.push(took);
        }
        // Before its folder is known, an error is only printed.
        let is_early = case.is_early();
        let is_complete = detections.len() == N_RANKS - 1;
        ensure!(
            is_early || is_left || is_complete,
            "errors of {:?}: {}",
            errors.keys(),
            said(folder)
        );
        if case.is_within_a_step() {
            let without = |rank: &usize| !folder.join(format!("run/ops.{rank}.jsonl")).exists();
            let without: Vec<_> = errors.keys().copied().filter(without).collect();
            ensure!(without.is_empty(), "ranks {without:?} do not say what they did last");
        }
        // The launcher prints messages of its own.
        let is_named = |line: &str| {
            line.starts_with("error: ") && line.contains(&format!("rank {}", case.rank))
        };
        // Only the launcher knows a rank that never starts MPI. If it is killed, each launcher
        // reports it differently.
        let is_unknown = case.point == "start";
        ensure!(
            is_left || is_unknown || said(folder).lines().any(is_named),
            "nobody names the rank: {}",
            said(folder)
        );
        nothing_is_left(folder).with_context(|| format!("the launcher ended with {code:?}"))?;

        let code = wait(self.start(folder, None)?)?;
        ensure!(code == Some(0), "the restarted run ends with {code:?}: {}", said(folder));
        ensure!(losses(folder) == self.losses, "other losses: {:?}", losses(folder));
        nothing_is_left(folder)?;
        let unfinished = unfinished(&folder.join("run"))?;
        ensure!(unfinished.is_empty(), "left behind: {unfinished:?}");
        Ok(Some(Ended { detections }))
    }

    fn start(&self, folder: &Path, case: Option<&Case>) -> Result<Child> {
        let out = folder.join("run");
        let mut command = launch(&self.launcher, &N_RANKS.to_string(), &self.program);
        command.arg("train").args(OPTIONS.split_whitespace());
        command.args(self.setting.timeouts.split_whitespace());
        command.arg("--data").arg(self.data.path().join("text")).arg("--out").arg(out);
        // Files of the launcher and its library are kept separate from others.
        let places = ["tmp", "shm"].map(|name| folder.join(name));
        places.iter().try_for_each(fs::create_dir_all)?;
        command.env("TMPDIR", &places[0]).env("OMPI_MCA_btl_vader_backing_directory", &places[1]);
        command.envs(self.setting.environment.iter().cloned());
        if let Some(Case { rank, blow, point }) = case {
            let file = folder.join("struck");
            command.env("CHIMERA_STRIKE", format!("{rank} {blow} {point} {}", file.display()));
        }
        let output = |name| File::options().create(true).append(true).open(folder.join(name));
        command.stdout(output("output")?).stderr(output("output")?);
        command.spawn().with_context(|| format!("starting {}", self.launcher))
    }
}

/// Writes a text of numbers to train on into the file `text` of a folder.
pub fn write_text(folder: &Path) -> Result<()> {
    let numbers = (0..2000u32).map(|i| format!("{} ", i.wrapping_mul(2654435761) >> 20));
    Ok(fs::write(folder.join("text"), numbers.collect::<String>())?)
}

/// Waits for the launcher and returns its exit code.
fn wait(mut child: Child) -> Result<Option<i32>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            bail!("it hangs");
        }
        sleep(Duration::from_millis(10));
    }
}

fn said(folder: &Path) -> String {
    read_to_string(folder.join("output")).unwrap_or_default()
}

/// The steps of a run without their times; none if it has no metrics.
fn losses(folder: &Path) -> Vec<[String; 3]> {
    figures(&folder.join("run"), ["step", "loss", "grad_norm"]).unwrap_or_default()
}

/// The error files by rank, with the time at which they were written.
fn errors(folder: &Path) -> Result<BTreeMap<usize, (Value, SystemTime)>> {
    let mut errors = BTreeMap::new();
    for rank in 0..N_RANKS {
        let path = folder.join(format!("run/error.{rank}.json"));
        if path.exists() {
            let error = serde_json::from_str(&read_to_string(&path)?)?;
            errors.insert(rank, (error, metadata(&path)?.modified()?));
        }
    }
    Ok(errors)
}

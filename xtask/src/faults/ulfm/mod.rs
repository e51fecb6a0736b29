//! Deaths that a training over MPI survives, with replacements or with fewer ranks, with Open MPI 5
//! from PyPI: `cargo xtask mpi --ulfm`.

pub(crate) mod command;
mod lab;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::command::{APART, Course};
use xtask::command::{Programs, run as run_command, target};
use xtask::features::TRANSPORT;
use xtask::open_mpi_5::OpenMpi5;

const RANKS: u32 = 4;
/// Points at which a rank dies, in percent of its transport calls.
const POINTS: [u64; 6] = [1, 15, 35, 55, 75, 93];
/// Pairs of ranks with different stages: Chimera's workers 0 and 3 hold the same ones, as do 1 and
/// 2.
const PAIRS: [(u32, u32); 4] = [(0, 1), (1, 3), (2, 0), (3, 2)];
/// Pairs in which the second rank does not spawn the first one's replacement, so it may die during
/// the spawn.
const PAIRS_IN_SPAWN: [(u32, u32); 2] = [(1, 3), (3, 2)];
/// Seconds after which a launcher ends its ranks: a test that hangs is one that fails.
const PATIENCE: u64 = 100;
/// Milliseconds after which a rank is in the spawn of a meeting.
const IN_SPAWN_MS: u64 = 300;

/// Open MPI 5, and the programs built with it.
struct Ulfm {
    mpi: OpenMpi5,
    /// Folder of the files that ranks write.
    left: PathBuf,
    respawn: PathBuf,
}

/// Runs the conformance suite, and kills ranks of a training at several points: each training must
/// end with the undisturbed bits. With a course, kills ranks of one long run instead.
pub(crate) fn run(course: Option<Course>) -> Result<()> {
    let mpi = OpenMpi5::install()?;
    let mut build = mpi.cargo(["test", "--package", TRANSPORT, "--no-run"]);
    let programs = Programs::build(build.args(["--test=conformance", "--test=respawn"]))?;
    let chimera = mpi.chimera()?;
    let ulfm = Ulfm {
        mpi,
        left: target()?.join("ulfm-left"),
        respawn: programs.program("comm-mpi", "respawn")?,
    };
    let conformance = programs.program("comm-mpi", "conformance")?;
    let launch = |seconds| ulfm.launch_for(seconds, RANKS, &chimera);
    if let Some(course) = course {
        return course.run(launch);
    }
    for n in [2, RANKS] {
        run_command(&mut ulfm.launch(n, &conformance))?;
    }
    ulfm.deaths()?;
    ulfm.fewer()?;
    command::run(|| launch(PATIENCE))
}

impl Ulfm {
    /// Starts `program` as the ranks of a job that goes on after deaths.
    fn launch(&self, n: u32, program: &Path) -> Command {
        self.launch_for(PATIENCE, n, program)
    }

    /// Starts a job that the launcher ends after `seconds`.
    fn launch_for(&self, seconds: u64, n: u32, program: &Path) -> Command {
        let mut command = self.mpi.command("mpirun");
        command.args(["--with-ft", "ulfm", "--oversubscribe", "--timeout"]);
        command.args([&seconds.to_string(), "-n", &n.to_string()]).arg(program);
        command
    }

    /// Kills each rank at several points, two at once, and one while another is replaced.
    fn deaths(&self) -> Result<()> {
        let undisturbed = self.train("", false)?;
        let calls = |rank: u32, percent: u64| -> u64 {
            let all = undisturbed.ranks[&rank]["calls"].as_u64().unwrap_or(0);
            (all * percent / 100).max(1)
        };
        let mut cases = Vec::new();
        for percent in POINTS {
            cases.extend((0..RANKS).map(|rank| format!("{rank}@{}", calls(rank, percent))));
            let pair = |(a, b)| format!("{a}@{},{b}@{}", calls(a, percent), calls(b, percent));
            cases.extend(PAIRS.map(pair));
        }
        cases.extend(PAIRS.map(|(a, b)| format!("{a}@{},{b}+0", calls(a, 50))));
        let in_spawn = |(a, b)| format!("{a}@{},{b}+{IN_SPAWN_MS}", calls(a, 50));
        cases.extend(PAIRS_IN_SPAWN.map(in_spawn));
        let (mut longest, mut n_deaths) = (Duration::ZERO, 0);
        for case in &cases {
            let disturbed = self.train(case, false).with_context(|| format!("deaths {case}"))?;
            disturbed.compare(&undisturbed).with_context(|| format!("deaths {case}"))?;
            let waits = disturbed.waits();
            let words: Vec<_> = waits.iter().map(|t| format!("{:.2} s", t.as_secs_f64())).collect();
            println!("{case}: the undisturbed bits; to the next step {}", words.join(", "));
            n_deaths += disturbed.deaths.len();
            longest = waits.into_iter().chain([longest]).max().unwrap_or_default();
        }
        println!(
            "{} trainings with {n_deaths} deaths ended with the undisturbed bits; from a death to the next finished step at \
             most {:.2} s",
            cases.len(),
            longest.as_secs_f64()
        );
        Ok(())
    }

    /// Kills each rank at several points, and lets the others continue without it.
    fn fewer(&self) -> Result<()> {
        let undisturbed = self.train("", true)?;
        let (mut longest, mut worst) = (Duration::ZERO, 0.0f64);
        for (percent, rank) in POINTS.into_iter().flat_map(|p| (0..RANKS).map(move |r| (p, r))) {
            let calls = undisturbed.ranks[&rank]["calls"].as_u64().unwrap_or(0);
            let case = format!("{rank}@{}", (calls * percent / 100).max(1));
            let fewer = self.train(&case, true).with_context(|| format!("without {case}"))?;
            ensure!(fewer.ranks.len() as u32 == RANKS - 1, "{case}: not three ranks ended well");
            let apart = fewer.apart(&undisturbed).with_context(|| format!("without {case}"))?;
            ensure!(apart <= APART, "without {case} weights or losses are {apart:e} apart");
            worst = worst.max(apart);
            longest = fewer.waits().into_iter().chain([longest]).max().unwrap_or_default();
        }
        println!(
            "{} trainings went on with {} of {RANKS} ranks, at most {worst:.1e} from the undisturbed weights and losses; from a \
             death to the next finished step at most {:.2} s",
            POINTS.len() * RANKS as usize,
            RANKS - 1,
            longest.as_secs_f64()
        );
        Ok(())
    }

    fn train(&self, deaths: &str, narrow: bool) -> Result<Left> {
        if self.left.exists() {
            fs::remove_dir_all(&self.left)?;
        }
        let mut command = self.launch(RANKS, &self.respawn);
        if narrow {
            command.env("NARROW", "");
        }
        run_command(command.env("LEFT", &self.left).env("DEATHS", deaths))?;
        Left::read(&self.left)
    }
}

/// The files of a training.
struct Left {
    /// The result of each rank that ended successfully.
    ranks: BTreeMap<u32, Value>,
    /// Steps with the microsecond of their end, and ranks with that of their death.
    steps: Vec<(u64, u64)>,
    deaths: Vec<(u64, u64)>,
}

impl Left {
    fn read(folder: &Path) -> Result<Left> {
        let mut ranks = BTreeMap::new();
        for rank in 0..RANKS {
            if let Ok(text) = read_to_string(folder.join(format!("rank.{rank}.json"))) {
                ranks.insert(rank, serde_json::from_str(&text)?);
            }
        }
        Ok(Left {
            ranks,
            steps: lines(&folder.join("steps"))?,
            deaths: lines(&folder.join("deaths"))?,
        })
    }

    /// Checks that weights, and the losses of the steps that a rank knows, are equal to the bit.
    fn compare(&self, undisturbed: &Left) -> Result<()> {
        ensure!(self.ranks.len() == undisturbed.ranks.len(), "not all ranks have ended well");
        for (rank, left) in &self.ranks {
            let want = &undisturbed.ranks[rank];
            ensure!(left["weights"] == want["weights"], "rank {rank} ended with other weights");
            for (step, loss) in left["losses"].as_object().into_iter().flatten() {
                ensure!(want["losses"][step] == *loss, "rank {rank}: another loss in step {step}");
            }
        }
        ensure!(self.last_step() == undisturbed.last_step(), "not all steps were finished");
        Ok(())
    }

    /// The largest difference between weights, and between losses of the steps that ranks know.
    fn apart(&self, undisturbed: &Left) -> Result<f64> {
        let mut apart = 0.0f64;
        let mut names = BTreeSet::new();
        let object = |left: &Value, what: &str| left[what].as_object().cloned().unwrap_or_default();
        for left in self.ranks.values() {
            for (name, bits) in object(left, "weights") {
                let known = undisturbed.ranks.values().find_map(|left| left["weights"].get(&name));
                apart = apart.max(weights_apart(&bits, known.context("an unknown weight")?)?);
                names.insert(name);
            }
            for (step, bits) in object(left, "losses") {
                let known = undisturbed.ranks.values().find_map(|left| left["losses"].get(&step));
                let loss = |bits: &Value| bits.as_u64().map(f64::from_bits).context("no loss");
                apart = apart.max((loss(&bits)? - loss(known.context("an unknown step")?)?).abs());
            }
        }
        let all = undisturbed.ranks.values().flat_map(|left| object(left, "weights"));
        ensure!(all.into_iter().all(|(name, _)| names.contains(&name)), "weights are missing");
        ensure!(self.last_step() == undisturbed.last_step(), "not all steps were finished");
        Ok(apart)
    }

    fn last_step(&self) -> Option<u64> {
        self.steps.iter().map(|(step, _)| *step).max()
    }

    /// The time from each death to the next step that was finished after the recovery.
    fn waits(&self) -> Vec<Duration> {
        let wait = |(_, died): &(u64, u64)| {
            let is_new = |(nth, (step, _)): &(usize, &(u64, u64))| {
                self.steps[..*nth].iter().all(|(earlier, _)| earlier != step)
            };
            let later = self.steps.iter().enumerate().filter(is_new).map(|(_, (_, at))| *at);
            let times: Vec<u64> = [*died].into_iter().chain(later.filter(|at| at > died)).collect();
            // A step whose sync was done may still have been finished, so the recovery is the
            // longest pause.
            let pause = times.windows(2).max_by_key(|pair| pair[1] - pair[0])?;
            Some(Duration::from_micros(pause[1] - died))
        };
        self.deaths.iter().filter_map(wait).collect()
    }
}

/// The largest difference between the values of a tensor, which are given as bits.
fn weights_apart(found: &Value, known: &Value) -> Result<f64> {
    let values = |bits: &Value| -> Result<Vec<f32>> {
        let bits = bits.as_array().context("weights are no list")?;
        let value = |bits: &Value| Some(f32::from_bits(u32::try_from(bits.as_u64()?).ok()?));
        bits.iter().map(|bits| value(bits).context("a weight is no number")).collect()
    };
    let (found, known) = (values(found)?, values(known)?);
    ensure!(found.len() == known.len(), "a weight has another length");
    let apart = found.iter().zip(&known).map(|(a, b)| f64::from((a - b).abs()));
    Ok(apart.fold(0.0, f64::max))
}

/// Pairs of numbers, one pair per line; none if the file is missing.
fn lines(file: &Path) -> Result<Vec<(u64, u64)>> {
    let Ok(text) = read_to_string(file) else { return Ok(Vec::new()) };
    let pair = |line: &str| -> Result<(u64, u64)> {
        match line.split_once(' ') {
            Some((number, time)) => Ok((number.parse()?, time.parse()?)),
            None => bail!("{}: {line:?} is not two numbers", file.display()),
        }
    };
    text.lines().map(pair).collect()
}

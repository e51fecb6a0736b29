//! Random commands on bad, odd and hostile input: whatever a user or a file says, a command ends soon, within bounds of
//! memory, and with a documented exit code.
//!
//! Every case follows from the seed and its number alone, so that a failure can be repeated.

mod damage;
mod fixtures;
mod interrupted;
mod options;
mod places;
mod process;
mod random;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command::{cargo, program, run as run_command, target};
use fixtures::Fixtures;
use process::{Limits, Outcome};
use random::Random;

/// How long to torture, and with what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds until no further case begins
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// What all cases follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Repeats one case, and keeps its folder
    #[arg(long, value_name = "NUMBER")]
    case: Option<u64>,
    /// Cases at a time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Seconds after which a command hangs
    #[arg(long, default_value_t = 10)]
    patience: u64,
    /// The command [default: a debug build]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// A kind of cases: some commands on something that was made bad at random.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// How often it is drawn, among the others.
    weight: u64,
    attempt: fn(&mut Attempt<'_>) -> Result<()>,
}

const KINDS: [Kind; 5] = [
    Kind { name: "options", weight: 40, attempt: options::attempt },
    Kind { name: "damaged files", weight: 25, attempt: damage::files },
    Kind { name: "damaged runs", weight: 25, attempt: damage::runs },
    Kind { name: "places", weight: 15, attempt: places::attempt },
    Kind { name: "interruptions", weight: 3, attempt: interrupted::attempt },
];

/// One case under way.
struct Attempt<'a> {
    random: Random,
    fixtures: &'a Fixtures,
    limits: Limits,
    /// Its own folder, in which its commands run.
    folder: PathBuf,
    n_commands: u64,
}

impl Attempt<'_> {
    /// Runs a command line, which must end as every command must.
    fn run(&mut self, words: &[String]) -> Result<Outcome> {
        self.n_commands += 1;
        let outcome = self.limits.run(words, &self.folder)?;
        outcome.check().with_context(|| format!("chimera {}", words.join(" ")))?;
        Ok(outcome)
    }
}

/// What was done of a kind.
#[derive(Default)]
struct Count {
    n_cases: u64,
    n_commands: u64,
}

/// Draws cases until the time is over or one fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    let limits = Limits { program: built(args)?, patience: Duration::from_secs(args.patience) };
    let fixtures = Fixtures::make(&limits)?;
    if let Some(case) = args.case {
        let (kind, outcome, _) = attempt(args.seed, case, &fixtures, &limits);
        eprintln!("case {case} is of {}", kind.name);
        return outcome.map_err(|error| anyhow::anyhow!(causes(&error)));
    }
    let (next, began) = (AtomicU64::new(0), Instant::now());
    let (counts, failures) = (Mutex::new(BTreeMap::<_, Count>::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while began.elapsed().as_secs() < args.seconds {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    let (kind, outcome, n_commands) = attempt(args.seed, case, &fixtures, &limits);
                    if let Ok(mut counts) = counts.lock() {
                        let count = counts.entry(kind.name).or_default();
                        count.n_cases += 1;
                        count.n_commands += n_commands;
                    }
                    if let (Err(error), Ok(mut failures)) = (outcome, failures.lock()) {
                        let seed = args.seed;
                        eprintln!(
                            "FAILED: --seed {seed} --case {case} ({}): {}",
                            kind.name,
                            causes(&error)
                        );
                        failures.push(case);
                    }
                }
            });
        }
    });
    report(&counts.into_inner().unwrap_or_default(), began.elapsed());
    match failures.into_inner().unwrap_or_default().len() {
        0 => Ok(()),
        n => bail!("{n} case(s) failed; repeat each with the --seed and --case above"),
    }
}

/// An error with its causes, and without where in this program it was noticed.
fn causes(error: &anyhow::Error) -> String {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join(": ")
}

fn report(counts: &BTreeMap<&str, Count>, took: Duration) {
    let (mut n_cases, mut n_commands) = (0, 0);
    for (kind, count) in counts {
        eprintln!("{kind:<14} {:>7} cases {:>7} commands", count.n_cases, count.n_commands);
        n_cases += count.n_cases;
        n_commands += count.n_commands;
    }
    let seconds = took.as_secs_f64();
    eprintln!(
        "{n_cases} cases, {n_commands} commands in {seconds:.0} s, {:.1} cases/s",
        n_cases as f64 / seconds
    );
}

/// Makes one case, in a folder that stays if it fails.
fn attempt(seed: u64, case: u64, fixtures: &Fixtures, limits: &Limits) -> (Kind, Result<()>, u64) {
    let mut random = Random::of_case(seed, case);
    let kind = random.weighted(&KINDS, |kind| kind.weight);
    let mut n_commands = 0;
    let attempted = || -> Result<()> {
        let folder = tempfile::Builder::new().prefix(&format!("torture-{case}-")).tempdir()?;
        let path = folder.path().to_path_buf();
        let limits = limits.clone();
        let mut attempt = Attempt { random, fixtures, limits, folder: path, n_commands: 0 };
        let outcome = (kind.attempt)(&mut attempt);
        n_commands = attempt.n_commands;
        outcome.map_err(|error| {
            let kept = folder.keep();
            error.context(format!("in {}", kept.display()))
        })
    };
    let outcome = attempted();
    (kind, outcome, n_commands)
}

/// The command that is tortured: with debug assertions, unless another is named.
fn built(args: &Args) -> Result<PathBuf> {
    match &args.program {
        Some(program) => {
            Ok(program.canonicalize().with_context(|| program.display().to_string())?)
        }
        None => {
            run_command(&mut cargo([
                "build",
                "--package",
                "chimera-pipeline",
                "--bin",
                "chimera",
            ]))?;
            Ok(target()?.join("debug").join(program("chimera")))
        }
    }
}

//! Random commands on bad, odd and hostile input, under limits and with failing system calls.
//! Whatever a user, a file or the system does, a command ends soon, with bounded memory, a message,
//! and a documented exit code.
//!
//! Every case depends only on the seed and its number, so a failure can be repeated.

mod damage;
mod failing;
mod files;
mod fixtures;
mod interrupted;
mod limits;
mod options;
mod places;
mod process;
mod random;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;

use fixtures::Fixtures;
use process::{Failure, Flaw, Limits, Outcome, Under};
use random::Random;
use xtask::command::{cargo, program, run as run_command, target};

/// Random commands on hostile input, under limits and with system calls that fail
#[derive(Parser)]
#[command(name = "cargo xtask torture", bin_name = "cargo xtask torture", max_term_width = 100)]
struct Args {
    /// Cases to draw
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    cases: u64,
    /// Seed of all cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Repeats one case, and keeps its folder
    #[arg(long, value_name = "NUMBER")]
    case: Option<u64>,
    /// Draws only cases of this kind, such as "options"
    #[arg(long, value_name = "NAME")]
    kind: Option<String>,
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

/// A kind of cases.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Weight among the kinds when one is drawn.
    weight: u64,
    attempt: fn(&mut Attempt<'_>) -> Result<()>,
}

const KINDS: [Kind; 7] = [
    Kind { name: "options", weight: 40, attempt: options::attempt },
    Kind { name: "damaged files", weight: 12, attempt: damage::files },
    Kind { name: "damaged runs", weight: 18, attempt: damage::runs },
    Kind { name: "places", weight: 10, attempt: places::attempt },
    Kind { name: "limits", weight: 10, attempt: limits::attempt },
    Kind { name: "failing calls", weight: 9, attempt: failing::attempt },
    Kind { name: "interruptions", weight: 1, attempt: interrupted::attempt },
];

/// Time that sound commands may take on a busy machine.
const FOR_FIXTURES: Duration = Duration::from_secs(120);

/// A case that is running.
struct Attempt<'a> {
    number: u64,
    random: Random,
    fixtures: &'a Fixtures,
    limits: Limits,
    /// Its own folder, in which its commands run.
    folder: PathBuf,
    n_commands: u64,
}

impl Attempt<'_> {
    /// Runs a command line, which must end properly.
    fn run(&mut self, words: &[String]) -> Result<Outcome> {
        self.run_under(words, &Under::default())
    }

    /// Runs a command line under a disturbance.
    fn run_under(&mut self, words: &[String], under: &Under) -> Result<Outcome> {
        self.n_commands += 1;
        let outcome = self.limits.run(words, under, &self.folder)?;
        outcome.check(under).with_context(|| under.line(words))?;
        Ok(outcome)
    }
}

/// The number of cases and flaws of a kind.
#[derive(Default)]
struct Count {
    n_cases: u64,
    n_commands: u64,
    flaws: BTreeMap<Flaw, u64>,
}

/// Draws cases, and prints those that fail.
fn main() -> Result<()> {
    let args = &Args::parse();
    let mut limits = Limits { program: built(args)?, patience: Duration::from_secs(args.patience) };
    let fixtures = Fixtures::make(&Limits { patience: FOR_FIXTURES, ..limits.clone() })?;
    limits.program = fixtures.program.clone();
    let kinds = match &args.kind {
        None => KINDS.to_vec(),
        Some(name) => KINDS.into_iter().filter(|kind| kind.name == name).collect(),
    };
    if kinds.is_empty() {
        bail!("no kind of cases has that name: choose {}", KINDS.map(|kind| kind.name).join(", "));
    }
    let draws = Draws { args, kinds, fixtures: &fixtures, limits };
    if let Some(case) = args.case {
        let (kind, outcome, _) = draws.attempt(case);
        eprintln!("case {case} is of {}", kind.name);
        return outcome.map_err(|error| anyhow::anyhow!(causes(&error)));
    }
    let (next, began) = (AtomicU64::new(0), Instant::now());
    let counts = Mutex::new(BTreeMap::<_, Count>::new());
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    if case >= args.cases {
                        break;
                    }
                    let (kind, outcome, n_commands) = draws.attempt(case);
                    let mut counts = counts.lock().unwrap_or_else(|counts| counts.into_inner());
                    let count = counts.entry(kind.name).or_default();
                    count.n_cases += 1;
                    count.n_commands += n_commands;
                    if let Err(error) = outcome {
                        eprintln!(
                            "FAILED ({}): {}\n  {}",
                            kind.name,
                            causes(&error),
                            draws.again(case)
                        );
                        // Any other error is a flaw of this program or of its fixtures.
                        let flaw =
                            error.downcast_ref::<Failure>().map_or(Flaw::Case, |failure| failure.0);
                        *count.flaws.entry(flaw).or_default() += 1;
                    }
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap_or_else(|counts| counts.into_inner());
    report(&counts, began.elapsed());
    match counts.values().flat_map(|count| count.flaws.values()).sum::<u64>() {
        0 => Ok(()),
        n => bail!("{n} case(s) failed; repeat each with the command below it"),
    }
}

/// An error with its causes, without the place in this program that noticed it.
fn causes(error: &anyhow::Error) -> String {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join(": ")
}

/// Prints a row for each kind of cases: the number of cases, and the flaws.
fn report(counts: &BTreeMap<&str, Count>, took: Duration) {
    let names: String = Flaw::ALL.iter().map(|(_, name)| format!("{name:>9}")).collect();
    println!("{:<14}{:>8}{:>9}{names}", "kind", "cases", "commands");
    let mut all = Count::default();
    let row = |name: &str, count: &Count| {
        let of = |(flaw, _): &(Flaw, &str)| count.flaws.get(flaw).copied().unwrap_or(0);
        let flaws: String = Flaw::ALL.iter().map(|flaw| format!("{:>9}", of(flaw))).collect();
        println!("{name:<14}{:>8}{:>9}{flaws}", count.n_cases, count.n_commands);
    };
    for (kind, count) in counts {
        row(kind, count);
        all.n_cases += count.n_cases;
        all.n_commands += count.n_commands;
        count.flaws.iter().for_each(|(flaw, n)| *all.flaws.entry(*flaw).or_default() += n);
    }
    row("all", &all);
    let seconds = took.as_secs_f64();
    println!("{seconds:.0} s, {:.1} cases/s", all.n_cases as f64 / seconds);
}

/// Kinds, fixtures and limits that cases are drawn from.
struct Draws<'d> {
    args: &'d Args,
    kinds: Vec<Kind>,
    fixtures: &'d Fixtures,
    limits: Limits,
}

impl Draws<'_> {
    /// Makes one case, in a folder that stays if it fails.
    fn attempt(&self, number: u64) -> (Kind, Result<()>, u64) {
        let mut random = Random::of_case(self.args.seed, number);
        let kind = random.weighted(&self.kinds, |kind| kind.weight);
        let mut n_commands = 0;
        let attempted = || -> Result<()> {
            let prefix = format!("torture-{number}-");
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir()?;
            let (path, limits) = (folder.path().to_path_buf(), self.limits.clone());
            let fixtures = self.fixtures;
            let mut attempt =
                Attempt { number, random, fixtures, limits, folder: path, n_commands: 0 };
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

    /// The command that repeats a case.
    fn again(&self, case: u64) -> String {
        let Args { seed, kind, program, .. } = self.args;
        let kind = kind.as_ref().map_or(String::new(), |kind| format!(" --kind {kind:?}"));
        let program =
            program.as_ref().map_or(String::new(), |p| format!(" --program {}", p.display()));
        format!("cargo xtask torture --seed {seed} --case {case}{kind}{program}")
    }
}

/// The command under test: a build with debug assertions, unless another is named.
fn built(args: &Args) -> Result<PathBuf> {
    match &args.program {
        Some(program) => {
            Ok(program.canonicalize().with_context(|| program.display().to_string())?)
        }
        None => {
            run_command(&mut cargo([
                "build", "--package", "chimera-pipeline", "--bin", "chimera",
            ]))?;
            Ok(target()?.join("debug").join(program("chimera")))
        }
    }
}

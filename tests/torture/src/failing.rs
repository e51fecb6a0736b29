//! Commands in which one system call on their files fails, or the process is killed there. A
//! training loses no committed checkpoint, and goes on to the bits of an undisturbed one.

use std::collections::BTreeMap;
use std::fs::{self, read_to_string};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xtask::measure::figures;

use super::Attempt;
use super::files::{ALL, TINY, copy, open_to_all};
use super::process::{Failure, Flaw, Limits, Outcome, Under, must, words};

/// A training that is at step [`BEGUN`] and ends at step [`STEPS`], with its final state.
pub(super) struct Training {
    /// Its run folder after step [`BEGUN`].
    begun: PathBuf,
    options: &'static str,
    whole: Ended,
    /// The calls on its files, one letter each.
    calls: String,
}

/// Numbers and weights of a finished training, to the bit.
#[derive(PartialEq)]
struct Ended {
    /// Loss, norm and learning rate, by step.
    numbers: BTreeMap<u64, [String; 3]>,
    /// The shards of the last checkpoint.
    weights: Vec<Vec<u8>>,
}

/// Number of trainings to disturb.
pub(super) fn n_trainings() -> usize {
    OPTIONS.len()
}

const BEGUN: u64 = 3;
const STEPS: u64 = 7;
const OPTIONS: [&str; 4] = [
    "--schedule chimera --save-every 1",
    "--schedule 1f1b --save-every 2 --width 2 --shard-optimizer --keep 3",
    "--schedule zb-h1 --save-every 1 --keep 2 --eval-every 2 --report",
    "--schedule gpipe --save-every 3 --optimizer muon --log r/log --tensorboard r/board",
];
/// EIO, ENOSPC, EROFS, ESTALE, EACCES, and none for SIGKILL.
const ERRORS: [i32; 6] = [5, 28, 30, 116, 13, 0];
/// Groups of calls, one of which fails: open, write, sync, rename and stat, and create, remove and
/// link.
const CALLS: [&str; 9] = ["o", "w", "f", "r", "s", "m", "u", "l", "owfrmul"];
/// Commands that write something other than a run.
const OTHERS: [&str; 6] = [
    "export model --out r",
    "prepare text --tokenizer tokenizer.json --out r.bin",
    "schedule export chimera --format svg --out r.svg",
    "report run --out r.html",
    "checkpoint export run/checkpoints/step-00000004 --out r.safetensors",
    "simulate 1f1b --trace r.json",
];

impl Training {
    pub(super) fn all(limits: &Limits, library: &Path, at: &Path) -> Result<Vec<Training>> {
        let make = |(number, options)| Training::make(limits, library, at, number, options);
        OPTIONS.into_iter().enumerate().map(make).collect()
    }

    fn make(
        limits: &Limits,
        library: &Path,
        at: &Path,
        number: usize,
        options: &'static str,
    ) -> Result<Training> {
        let (begun, whole) =
            (at.join(format!("begun-{number}")), at.join(format!("whole-{number}")));
        fs::create_dir(&whole)?;
        fs::copy(at.join("text"), whole.join("text"))?;
        let run = |steps, under: &Under| -> Result<()> {
            let outcome = limits.run(&line(options, steps), under, &whole)?;
            ensure!(outcome.is_success(), "a training does not end: {}", outcome.stderr);
            Ok(())
        };
        run(BEGUN, &Under::default())?;
        copy(&whole.join("r"), &begun)?;
        let log = whole.join("calls");
        run(STEPS, &Under { environment: preload(library, &whole, &log), ..Under::default() })?;
        let calls = read_to_string(&log).context("the library to preload sees no calls")?;
        Ok(Training { begun, options, whole: Ended::read(&whole.join("r"))?, calls })
    }
}

/// The command line of the training in `r`, up to a step.
fn line(options: &str, steps: u64) -> Vec<String> {
    let rest = "--data text --lr-schedule constant --out r --resume auto";
    words(&format!("train {TINY} {options} {rest} --steps {steps}"))
}

/// Environment variables that log the calls on files whose path begins with `folder`/r in `log`.
fn preload(library: &Path, folder: &Path, log: &Path) -> Vec<(String, String)> {
    let pair = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
    vec![pair("LD_PRELOAD", library), pair("FAIL_UNDER", &folder.join("r")), pair("FAIL_LOG", log)]
}

impl Ended {
    fn read(run: &Path) -> Result<Ended> {
        let step = |[step, rest @ ..]: [String; 4]| Ok((step.parse()?, rest));
        let steps = figures(run, ["step", "loss", "grad_norm", "lr"])?;
        let numbers = steps.into_iter().map(step).collect::<Result<_>>()?;
        let mut shards = xtask::command::files(&run.join(checkpoint(STEPS)))?;
        shards.retain(|file| file.extension().is_some_and(|end| end == "safetensors"));
        Ok(Ended { numbers, weights: shards.iter().map(fs::read).collect::<Result<_, _>>()? })
    }
}

fn checkpoint(step: u64) -> String {
    format!("checkpoints/step-{step:08}")
}

/// Lets one call of a training or of another command fail.
pub(super) fn attempt(attempt: &mut Attempt<'_>) -> Result<()> {
    if attempt.random.once_in(4) {
        return other(attempt);
    }
    let number = attempt.random.below(OPTIONS.len());
    let training = &attempt.fixtures.trainings[number];
    let calls = attempt.random.of(&CALLS);
    let n = training.calls.chars().filter(|call| calls.contains(*call)).count();
    let under = failing(attempt, calls, n);
    disturbed(attempt, number, &under)
}

/// Draws which of `n` calls fails, and how.
fn failing(attempt: &mut Attempt<'_>, calls: &str, n: usize) -> Under {
    let (library, folder) = (&attempt.fixtures.library, &attempt.folder);
    let mut environment = preload(library, folder, &folder.join("calls"));
    let random = &mut attempt.random;
    let error = random.of(&ERRORS);
    let drawn = [
        ("FAIL_CALLS", calls.to_owned()),
        ("FAIL_AT", (1 + random.below(n)).to_string()),
        ("FAIL_FOR", random.of(&["1", "1", "3", "0"]).to_owned()),
        ("FAIL_ERROR", error.to_string()),
    ];
    environment.extend(drawn.map(|(name, value)| (name.to_owned(), value)));
    let codes = if error == 0 { &[137][..] } else { &[] };
    Under { environment, codes, ..Under::default() }
}

fn other(attempt: &mut Attempt<'_>) -> Result<()> {
    attempt.fixtures.copy(&ALL, &attempt.folder)?;
    let (command, calls) = (attempt.random.of(&OTHERS), attempt.random.of(&CALLS));
    let under = failing(attempt, calls, 6);
    attempt.run_under(&words(command), &under)?;
    Ok(())
}

/// Trains on with a disturbance, and then without: nothing is lost, and the bits are the same.
pub(super) fn disturbed(attempt: &mut Attempt<'_>, number: usize, under: &Under) -> Result<()> {
    let training = &attempt.fixtures.trainings[number];
    copy(&training.begun, &attempt.folder.join("r"))?;
    attempt.fixtures.copy(&["text"], &attempt.folder)?;
    if !under.starter.is_empty() {
        open_to_all(&attempt.folder)?;
    }
    let line = line(training.options, STEPS);
    let outcome = attempt.run_under(&line, under)?;
    go_on(attempt, training, &outcome).with_context(|| under.line(&line))
}

/// Checks the files that a disturbed training left, and continues from them.
fn go_on(attempt: &mut Attempt<'_>, training: &Training, outcome: &Outcome) -> Result<()> {
    let (Training { options, whole, .. }, run) = (training, attempt.folder.join("r"));
    check_cause(outcome)?;
    let saved = committed(attempt, &run)?;
    let said = outcome.stderr.clone();
    let is_done = outcome.is_success() && said.is_empty();
    must(
        saved >= BEGUN,
        Flaw::Lost,
        format!("no checkpoint from step {BEGUN} on is left: {said}"),
    )?;
    must(!is_done || saved == STEPS, Flaw::Lost, "it ends well, without its last checkpoint")?;
    let again = attempt.run(&line(options, STEPS))?;
    must(again.is_success(), Flaw::Lost, format!("it cannot go on: {}", again.stderr))?;
    let ended = Ended::read(&run).map_err(|e| Failure(Flaw::Lost, format!("{e:#}")))?;
    let is_same = |(step, numbers): (&u64, &_)| whole.numbers.get(step) == Some(numbers);
    must(ended.numbers.iter().all(is_same), Flaw::Lost, "its numbers are others")?;
    must(ended.weights == whole.weights, Flaw::Lost, "its weights are others")?;
    let has_all = ended.numbers.len() == whole.numbers.len();
    let is_said = [said, again.stderr].iter().any(|text| text.contains("metrics"));
    must(has_all || is_said, Flaw::Lost, "metrics are lost without a word")
}

/// A failed call must not be reported as a folder that somebody moved.
fn check_cause(outcome: &Outcome) -> Result<()> {
    let is_blamed = outcome.stderr.contains("removed, moved or replaced");
    must(!is_blamed, Flaw::Message, format!("a wrong cause: {}", outcome.stderr))
}

/// The step of the newest sound checkpoint.
fn committed(attempt: &mut Attempt<'_>, run: &Path) -> Result<u64> {
    for step in
        (1..=STEPS).rev().filter(|step| run.join(checkpoint(*step)).join("manifest.json").exists())
    {
        let verify = format!("checkpoint verify r/{}", checkpoint(step));
        if attempt.run(&words(&verify))?.is_success() {
            return Ok(step);
        }
    }
    Ok(0)
}

//! K-FAC compared with AdamW: a small BERT on the King James Bible, both with the same learning
//! rates, and the time of a step with the work of K-FAC in the bubbles of Chimera.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use xtask::command::{chimera, read, root, run as run_command};

/// The learning rates of both.
const RATES: [f64; 5] = [0.001, 0.002, 0.004, 0.008, 0.016];
/// Number of steps for the mean loss: one step predicts few tokens.
const MEAN: usize = 50;
/// Work of a worker in a step of Chimera with D = N = 8, and its idle time, in forwards.
const WORK: f64 = 24.0;
const IDLE: f64 = 12.0;
/// Updates between factors.
const EVERY: u64 = 10;
/// Number of steps that are timed.
const TIMED: u64 = 24;
/// The model and the batch of all runs.
const MODEL: [&str; 13] = [
    "--model", "bert", "--layers", "4", "--hidden", "64", "--heads", "4", "--context", "64",
    "--threads", "1", "--no-save",
];

/// Options of the study.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Steps of each training
    #[arg(long, default_value_t = 600)]
    steps: usize,
    /// File with the text [default: what the program `bible` of Debian's bible-kjv prints]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Program to run [default: a release build]
    #[arg(long, value_name = "FILE")]
    chimera: Option<PathBuf>,
}

/// Trains, and writes docs/kfac.md.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = args.chimera.clone().map_or_else(chimera, Ok)?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => bible(folder.path())?,
    };
    let validation = folder.path().join("validation.txt");
    let all = fs::read(&text).with_context(|| text.display().to_string())?;
    fs::write(&validation, &all[all.len().saturating_sub(8192)..])?;
    let trials = Trials { program, text, validation, folder: folder.path(), n_steps: args.steps };
    let mut curves = Vec::new();
    for optimizer in ["adamw", "kfac"] {
        for rate in RATES {
            curves.push(trials.curve(optimizer, rate)?);
        }
    }
    let page = page(args.steps, &curves, &trials.times()?);
    print!("{page}");
    let path = root().join("docs/kfac.md");
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))
}

/// The Bible without verse numbers.
fn bible(folder: &Path) -> Result<PathBuf> {
    let verses = read(Command::new("bible").args(["-f", "gen1:1-rev22:21"]))?;
    let verses = verses.lines().map(|line| line.split_once(' ').map_or("", |(_, verse)| verse));
    let path = folder.join("bible.txt");
    fs::write(&path, verses.collect::<Vec<_>>().join("\n"))?;
    Ok(path)
}

struct Trials<'t> {
    program: PathBuf,
    text: PathBuf,
    /// The end of the text, for the validation after each training.
    validation: PathBuf,
    folder: &'t Path,
    n_steps: usize,
}

/// Losses of a training, each the mean of the last [`MEAN`] steps.
struct Curve {
    optimizer: &'static str,
    rate: f64,
    means: Vec<f64>,
}

/// Seconds of a step on one worker.
struct Times {
    adamw: f64,
    /// With preconditioned gradients, but without factors.
    preconditioned: f64,
    /// With factors and inverses in each.
    whole: f64,
}

impl Trials<'_> {
    fn curve(&self, optimizer: &'static str, rate: f64) -> Result<Curve> {
        let (rate_text, every) = (rate.to_string(), EVERY.to_string());
        let options = ["--optimizer", optimizer, "--lr", &rate_text, "--kfac-every", &every];
        let pipeline = ["--depth", "1", "--micro-batches", "4"];
        let steps = self.n_steps.to_string();
        let given = [&options[..], &pipeline, &["--micro-batch-size", "2", "--steps", &steps]];
        let losses = self.train(&given.concat(), "loss")?;
        let mean = |end: usize| {
            let last = &losses[end.saturating_sub(MEAN)..end];
            last.iter().sum::<f64>() / last.len() as f64
        };
        Ok(Curve { optimizer, rate, means: (1..=losses.len()).map(mean).collect() })
    }

    fn times(&self) -> Result<Times> {
        let time = |optimizer: &str, every: u64| {
            let (every, steps) = (every.to_string(), TIMED.to_string());
            let options = ["--optimizer", optimizer, "--kfac-every", &every, "--steps", &steps];
            let batch = ["--depth", "1", "--micro-batches", "8", "--micro-batch-size", "2"];
            let mut seconds = self.train(&[&options[..], &batch].concat(), "step_s")?;
            seconds.remove(0); // the first step starts up
            seconds.sort_by(f64::total_cmp);
            Ok::<_, anyhow::Error>(seconds[seconds.len() / 2])
        };
        Ok(Times {
            adamw: time("adamw", 1)?,
            preconditioned: time("kfac", 2 * TIMED)?,
            whole: time("kfac", 1)?,
        })
    }

    /// Trains, and returns `field` of each step.
    fn train(&self, options: &[&str], field: &str) -> Result<Vec<f64>> {
        let (out, metrics) = (self.folder.join("run"), self.folder.join("metrics.jsonl"));
        let mut train = Command::new(&self.program);
        train.arg("train").args(MODEL).args(options).arg("--data").arg(&self.text);
        train.arg("--validation-data").arg(&self.validation);
        train
            .arg("--out")
            .arg(&out)
            .arg("--metrics")
            .arg(&metrics)
            .stdout(std::process::Stdio::null());
        run_command(&mut train)?;
        let lines = fs::read_to_string(&metrics)?;
        fs::remove_dir_all(&out)?;
        fs::remove_file(&metrics)?;
        let values = lines.lines().map(serde_json::from_str::<Value>);
        let values = values.filter_map(|line| line.map(|line| line[field].as_f64()).transpose());
        Ok(values.collect::<Result<_, _>>()?)
    }
}

fn page(n_steps: usize, curves: &[Curve], times: &Times) -> String {
    let mut page = format!(
        "# K-FAC beside AdamW\n\n\
         A BERT of 4 layers, hidden 64 and 4 heads on the bytes of the King James Bible, in batches of 8 samples of 64 tokens, \
         on one worker with one thread{}: what a pipeline trains is the same but for rounding. Losses are means of the last {MEAN} steps of training, \
         in nats. Made by `cargo xtask kfac`; [what K-FAC does](training.md#k-fac).\n\n\
         | optimizer | `lr` |",
        processor()
    );
    let marks: Vec<usize> = (1..=6).map(|sixth| (sixth * n_steps / 6).max(1)).collect();
    page.extend(marks.iter().map(|mark| format!(" step {mark} |")));
    page += "\n|---|--:|";
    page += &"--:|".repeat(marks.len());
    for Curve { optimizer, rate, means } in curves {
        let _ = write!(page, "\n| {optimizer} | {rate} |");
        for mark in &marks {
            let mean = means.get(mark - 1).map_or("diverged".into(), |mean| format!("{mean:.3}"));
            let _ = write!(page, " {mean} |");
        }
    }
    let last = |curve: &&Curve| curve.means.last().copied().unwrap_or(f64::INFINITY);
    let best = |optimizer| {
        let all = curves.iter().filter(|curve| curve.optimizer == optimizer);
        all.min_by(|a, b| last(a).total_cmp(&last(b)))
    };
    page += "\n\n";
    if let (Some(adamw), Some(kfac)) = (best("adamw"), best("kfac")) {
        page += &compared(n_steps, (adamw, kfac), times);
    }
    page
}

/// Compares both at their best rates, in steps and in simulated time.
fn compared(n_steps: usize, (adamw, kfac): (&Curve, &Curve), times: &Times) -> String {
    let Times { adamw: first_order, preconditioned, whole } = times;
    let forwards = |seconds: f64| seconds.max(0.0) / first_order * WORK;
    let (every_step, factors) =
        (forwards(preconditioned - first_order), forwards(whole - preconditioned));
    let left = (factors - IDLE).max(0.0);
    let step = WORK + IDLE;
    let kfac_step = step + every_step + left / EVERY as f64;
    let aim = adamw.means.last().copied().unwrap_or_default();
    let settled = |at: &usize| *at >= MEAN.min(n_steps);
    let there = kfac.means.iter().zip(1..).find(|(mean, at)| **mean <= aim && settled(at));
    let found = match there {
        Some((_, at)) => format!(
            "K-FAC (`lr` {}) comes to AdamW's loss of step {n_steps} ({aim:.3} with `lr` {}) in step {at}: {:.0} % of the \
             steps, and {:.0} % of the simulated time.",
            kfac.rate,
            adamw.rate,
            100.0 * at as f64 / n_steps as f64,
            100.0 * at as f64 * kfac_step / (n_steps as f64 * step),
        ),
        None => format!(
            "K-FAC (`lr` {}) does not come to AdamW's loss of step {n_steps} ({aim:.3} with `lr` {}).",
            kfac.rate, adamw.rate
        ),
    };
    format!(
        "{found}\n\nThe simulated time is that of Chimera with D = N = 8, whose workers compute for {WORK} forwards and idle for \
         {IDLE}, which pieces of one forward fill (`chimera simulate chimera --depth 8 --micro-batches 8 --work \
         factors=1`). On one worker a step of AdamW takes {:.1} ms, one with preconditioned gradients {:.1} ms, and one with \
         all factors and inverses too {:.1} ms. So factors and inverses are {factors:.1} forwards of work for each worker, every \
         {EVERY} updates. This counts the idle time of one of these {EVERY} steps alone, {IDLE} forwards: the other {left:.1} are \
         taken to make the steps longer, by {:.1} each. With {every_step:.1} more for the gradients of each step, a step of \
         K-FAC takes {kfac_step:.1} forwards where one of AdamW takes {step}: at most, since the work may fill the idle time of \
         all {EVERY}.\n\nLosses near each other hang on the noise of few predictions and on the schedule of the learning rate, \
         whose end only the last step reaches: the share of the steps is one measurement, not a mean over seeds.\n",
        1e3 * first_order,
        1e3 * preconditioned,
        1e3 * whole,
        left / EVERY as f64,
    )
}

/// The processor, as Linux names it.
fn processor() -> String {
    let all = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = all.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or(String::new(), |(_, name)| format!(" ({name})"))
}

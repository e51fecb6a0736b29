//! What a device must do and how fast it does it, by the built program alone: conformance of its kernels,
//! equivalence of training, and measurements.

mod conformance;
mod layers;
#[cfg(feature = "nccl")]
mod nccl;
mod steps;

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use chimera_core::equivalence::{Run, Trained};
use chimera_core::kernels::Kernels;
use chimera_core::model::{Architecture, ModelConfig};
use serde::Serialize;

use self::conformance::{Conformance, Equivalence, OutOfMemory};
use self::layers::Layers;
use self::steps::{Memory, Steps};
use crate::device::{Device, Devices, Opened, Precision};

/// Workers of the largest pipeline that is tried.
const DEPTH: usize = 4;
/// Largest relative difference of a loss from the CPU's.
const LOSS_TOLERANCES: [(Precision, f64); 2] = [(Precision::F32, 1e-4), (Precision::Bf16, 1e-2)];

/// How large what is measured is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Done in seconds on any processor: it shows that everything runs.
    Small,
    /// What a GPU needs to show its speed: GPT-2 with 124 million parameters.
    Full,
}

/// All that was found.
#[derive(Serialize, Debug)]
pub struct Report {
    /// The device in words.
    pub device: String,
    /// The program's version.
    pub version: &'static str,
    /// What must hold.
    pub checks: Vec<Check>,
    /// What is only told.
    pub measurements: Vec<Measurement>,
    /// What was not tried, and why; versions.
    pub notes: Vec<String>,
}

/// Something that must hold.
#[derive(Serialize, Clone, Debug)]
pub struct Check {
    /// What was tried.
    pub what: String,
    /// What came out: a relative error, or a count.
    pub value: f64,
    /// What it may be at most.
    pub limit: f64,
    /// Where it was worst, or why there is no value.
    pub at: String,
}

/// Something measured.
#[derive(Serialize, Clone, Debug)]
pub struct Measurement {
    /// What.
    pub what: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

impl Check {
    /// Whether it holds.
    pub fn passes(&self) -> bool {
        self.value <= self.limit
    }
}

/// What to try.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the parts to try, with or without a precision behind; all, if there are none.
    pub parts: Vec<String>,
    /// The device.
    pub device: Device,
    /// How large what is measured is.
    pub size: Size,
    /// For all of it. What is not done by then fails.
    pub time: Duration,
}

/// Tries and measures a device; `observe` hears of each result as it comes, and `keep` gets all that were found
/// after each part. The parts come in the order of their worth, each with a limit of its own, so that one that
/// hangs costs no other its result.
///
/// # Errors
/// If the device cannot be opened. That it fails later is a result.
pub fn run(
    options: &Options,
    mut observe: impl FnMut(&str),
    mut keep: impl FnMut(&Report) -> Result<()>,
) -> Result<Report> {
    let by = Instant::now() + options.time;
    let mut report = Report {
        device: String::new(),
        version: env!("CARGO_PKG_VERSION"),
        checks: Vec::new(),
        measurements: Vec::new(),
        notes: Vec::new(),
    };
    let all = parts(options)?;
    let is_known = |name: &&String| all.iter().any(|part| part.is_called(name));
    if let Some(unknown) = options.parts.iter().find(|name| !is_known(name)) {
        let names: Vec<String> =
            all.iter().map(|p| format!("{} {}", p.name, p.precision)).collect();
        bail!("there is no part `{unknown}`: choose of {}", names.join(", "));
    }
    let is_asked = |part: &Part| options.parts.iter().any(|name| part.is_called(name));
    for part in all.into_iter().filter(|part| options.parts.is_empty() || is_asked(part)) {
        report.device.clone_from(&part.device);
        let Part { name, limit, act, precision, .. } = part;
        let failed = |at: String| {
            let what = format!("{name}, {precision}");
            Found::Check(Check { what, value: f64::INFINITY, limit: 0.0, at })
        };
        let began = Instant::now();
        if began >= by {
            report.add(failed("no time was left".into()), &mut observe);
            continue;
        }
        let (sender, receiver) = channel();
        let suite = Suite { precision, size: options.size, sender };
        let deadline = by.min(began + limit);
        let thread = std::thread::Builder::new().name(name.into());
        let at_work = thread.spawn(move || act(suite))?;
        let broken = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(found) => report.add(found, &mut observe),
                // Its thread is left to itself: it ends with the process.
                Err(RecvTimeoutError::Timeout) => {
                    break Some(format!("not done in {:.0} s", began.elapsed().as_secs_f64()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    break at_work.join().is_err().then(|| "it panicked".to_string());
                }
            }
        };
        if let Some(at) = broken {
            report.add(failed(at), &mut observe);
        }
        keep(&report)?;
    }
    keep(&report)?;
    Ok(report)
}

/// One thing to try.
struct Part {
    name: &'static str,
    /// The device in words.
    device: String,
    precision: Precision,
    limit: Duration,
    act: Box<dyn FnOnce(Suite) + Send>,
}

impl Part {
    fn is_called(&self, name: &str) -> bool {
        name == self.name || name == format!("{} {}", self.name, self.precision)
    }
}

/// All of them, in the order of their worth.
fn parts(options: &Options) -> Result<Vec<Part>> {
    let device = match options.device {
        Device::Wgpu(None) => Device::Wgpu(Some(0)), // workers on several share no tensors
        named => named,
    };
    let open = |precision| Devices::open(&[device; DEPTH], 1, precision);
    let f32 = open(Precision::F32)?;
    let part = |devices: &Devices, precision, name, seconds, act: fn(Suite, &Devices)| {
        let devices = devices.clone();
        let device = devices.by_rank().first().map(Opened::name).unwrap_or_default();
        let limit = Duration::from_secs(seconds);
        let act = Box::new(move |suite: Suite| act(suite, &devices));
        Part { name, device, precision, limit, act }
    };
    let on_f32 = |name, seconds, act| part(&f32, Precision::F32, name, seconds, act);
    if !matches!(options.device, Device::Cuda(_)) {
        return Ok(vec![
            on_f32("kernels", 600, kernels),
            on_f32("training", 600, training),
            on_f32("layers", 600, layers_of),
            on_f32("steps", 600, steps_of),
        ]);
    }
    let bf16 = open(Precision::Bf16)?;
    let on_bf16 = |name, seconds, act| part(&bf16, Precision::Bf16, name, seconds, act);
    Ok(vec![
        on_f32("kernels", 60, kernels),
        on_bf16("kernels", 60, kernels),
        on_f32("training", 60, training),
        on_bf16("training", 60, training),
        on_bf16("steps", 120, steps_of),
        #[cfg(feature = "nccl")]
        on_f32("NCCL", 120, |mut suite, devices| nccl::ranks(&mut suite, devices)),
        on_f32("memory", 90, memory_of),
        on_f32("out of memory", 20, out_of_memory),
        on_bf16("layers", 60, layers_of),
        on_f32("steps", 90, steps_of),
        on_f32("layers", 60, layers_of),
    ])
}

fn kernels(mut suite: Suite, devices: &Devices) {
    let done = devices.poisoned().run(Conformance(&mut suite));
    suite.done(done);
}

fn training(mut suite: Suite, devices: &Devices) {
    let done = devices.run(Equivalence(&mut suite));
    suite.done(done);
}

fn layers_of(mut suite: Suite, devices: &Devices) {
    let done = devices.run(Layers(&mut suite));
    suite.done(done);
}

fn steps_of(mut suite: Suite, devices: &Devices) {
    let done = devices.run(Steps { suite: &mut suite, devices });
    suite.done(done);
}

fn memory_of(mut suite: Suite, devices: &Devices) {
    let done = devices.run(Memory { suite: &mut suite, devices });
    suite.done(done);
}

fn out_of_memory(mut suite: Suite, devices: &Devices) {
    let done = devices.run(OutOfMemory(&mut suite));
    suite.done(done);
}

/// What a part finds.
enum Found {
    Check(Check),
    Measurement(Measurement),
    Note(String),
}

impl Report {
    fn add(&mut self, found: Found, observe: &mut impl FnMut(&str)) {
        match found {
            Found::Check(check) => {
                let Check { what, value, at, .. } = &check;
                let (verdict, at) = if check.passes() { ("ok", "") } else { ("FAILED", &**at) };
                observe(&format!("{what:<52} {value:>9.1e} {verdict:>7}  {at}"));
                self.checks.push(check);
            }
            Found::Measurement(measurement) => {
                let Measurement { what, value, unit } = &measurement;
                observe(&format!("{what:<52} {value:>9.4} {unit}"));
                self.measurements.push(measurement);
            }
            Found::Note(note) => {
                observe(&note);
                self.notes.push(note);
            }
        }
    }
}

/// What the parts have in common.
struct Suite {
    precision: Precision,
    size: Size,
    sender: Sender<Found>,
}

impl Suite {
    fn check(&mut self, what: String, value: f64, limit: f64, at: String) {
        let what = format!("{what}, {}", self.precision);
        self.tell(Found::Check(Check { what, value, limit, at }));
    }

    fn fail(&mut self, what: &str, reason: &dyn fmt::Display) {
        self.check(what.to_string(), f64::INFINITY, 0.0, reason.to_string());
    }

    fn measure(&mut self, what: &str, value: f64, unit: &'static str) {
        let what = format!("{what}, {}", self.precision);
        self.tell(Found::Measurement(Measurement { what, value, unit }));
    }

    #[cfg_attr(not(feature = "nccl"), expect(dead_code, reason = "only NCCL may be missing"))]
    fn note(&mut self, note: &str) {
        self.tell(Found::Note(note.to_string()));
    }

    fn tell(&self, found: Found) {
        let heard = self.sender.send(found);
        let _ = heard; // nobody listens any more to a part that took too long
    }

    fn done(&mut self, done: Result<()>) {
        if let Err(e) = done {
            self.fail("devices", &e);
        }
    }

    /// Checks that losses are those expected.
    fn compare(&mut self, what: String, got: &[f64], expected: &[f64]) {
        let limit = LOSS_TOLERANCES.into_iter().find(|(p, _)| *p == self.precision);
        let limit = limit.map_or(0.0, |(_, limit)| limit);
        // A loss that is not a number is no maximum, and must not pass.
        let is_whole = got.len() == expected.len() && got.iter().all(|loss| loss.is_finite());
        let errors = got.iter().zip(expected).map(|(a, b)| ((a - b) / b).abs());
        let worst = if is_whole { errors.fold(0.0, f64::max) } else { f64::INFINITY };
        self.check(what, worst, limit, format!("{got:?} instead of {expected:?}"));
    }

    /// The losses of a run, or a failed check.
    fn train<K: Kernels>(&mut self, what: &str, run: &Run, by_rank: &[K]) -> Option<Trained> {
        let trained = run.train(|rank| Ok(by_rank[rank.index() % by_rank.len()].clone()));
        trained.map_err(|e| self.fail(what, &e)).ok()
    }
}

/// Sizes of what is measured.
struct Sizes {
    model: ModelConfig,
    micro_batch_size: usize,
    steps: u64,
    /// Seconds that one measurement takes at least.
    least: f64,
}

impl Size {
    fn sizes(self) -> Sizes {
        let (layers, hidden, heads, context, vocab, micro_batch_size, steps, least) = match self {
            Size::Small => (4, 32, 2, 16, 64, 1, 4, 0.01),
            Size::Full => (12, 768, 12, 1024, 50304, 8, 12, 0.2),
        };
        let model = ModelConfig {
            architecture: Architecture::Gpt2,
            layers,
            hidden,
            heads,
            context,
            vocab,
            tied: false,
        };
        Sizes { model, micro_batch_size, steps, least }
    }
}

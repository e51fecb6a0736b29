//! Tests what a device must do and measures its speed, with nothing but the built program:
//! conformance of kernels, equivalence of training, and measurements.

mod conformance;
mod layers;
#[cfg_attr(not(feature = "nccl"), path = "no_nccl.rs")]
mod nccl;
mod report;
mod size;
mod steps;
mod suite;
mod values;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::conformance::{Conformance, Equivalence, OutOfMemory};
use self::layers::LayerSpeeds;
use self::report::Found;
use self::steps::{Memory, StepTrials};
use self::suite::Suite;
use crate::device::{Device, Devices, Kernels, OpenDevice, Precision};

pub use self::report::{Check, Measurement, Report};
pub use self::size::Size;

/// Workers of the largest pipeline that is tried.
const DEPTH: usize = 4;

/// The tests to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the parts to run, with or without a precision after them; empty for all.
    pub parts: Vec<String>,
    /// The device.
    pub device: Device,
    /// Size of what is measured.
    pub size: Size,
    /// Time limit for all parts. Parts that are not done by then fail.
    pub time: Duration,
}

/// Tests and measures a device. Calls `observe` with each result as it comes, and `keep` with all
/// results after each part. The most valuable parts come first, each with a limit of its own, so
/// that one that hangs costs no other part its result.
///
/// # Errors
/// If the device cannot be opened. A failure after that is a result.
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
        bail!("there is no part `{unknown}`: choose from {}", names.join(", "));
    }
    for line in options.device.listing::<Kernels>() {
        report.add(Found::Note(line), &mut observe);
    }
    let is_asked = |part: &Part| options.parts.iter().any(|name| part.is_called(name));
    for part in all.into_iter().filter(|part| options.parts.is_empty() || is_asked(part)) {
        report.device.clone_from(&part.device);
        let Part { name, limit, act, precision, .. } = part;
        let failed = |at| Found::Check(Check::failed(format!("{name}, {precision}"), at));
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
                // The thread is abandoned: it ends with the process.
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = began.elapsed().as_secs_f64();
                    let so = "it goes on, and may slow the measurements after it";
                    break Some(format!("not done in {seconds:.0} s; {so}"));
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

/// One part of the selftest.
struct Part {
    name: &'static str,
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

/// A device at a precision, opened for a worker each.
struct OpenedAt {
    precision: Precision,
    devices: Devices,
    size: Size,
}

impl OpenedAt {
    /// Returns a part that may take some seconds.
    fn part(&self, name: &'static str, seconds: u64, act: fn(Suite, &Devices)) -> Part {
        let devices = self.devices.clone();
        let device = devices.by_rank().first().map(OpenDevice::name).unwrap_or_default();
        let limit = Duration::from_secs(match self.size {
            Size::Small => 600, // on any CPU
            Size::Full => seconds,
        });
        let act = Box::new(move |suite: Suite| act(suite, &devices));
        Part { name, device, precision: self.precision, limit, act }
    }

    /// Returns the parts for a processor.
    fn on_host(&self) -> [Part; 4] {
        [
            self.part("kernels", 600, kernels),
            self.part("training", 600, training),
            self.part("layers", 600, layers_of),
            self.part("steps", 600, steps_of),
        ]
    }

    /// Returns the part that compares attention with generic kernels on `f32`.
    fn values(&self, f32: &OpenedAt) -> Part {
        let (generic, tiled) = (f32.devices.generic().poisoned(), self.devices.poisoned());
        let act = move |mut suite: Suite| values::attention(&mut suite, &generic, &tiled);
        Part { act: Box::new(act), ..self.part("values", 60, |_, _| {}) }
    }
}

/// Returns all parts, the most valuable first.
fn parts(options: &Options) -> Result<Vec<Part>> {
    let size = options.size;
    let device = if options.device.has_streams::<Kernels>() {
        options.device
    } else {
        options.device.numbered::<Kernels>(0)?
    };
    let open = |precision| -> Result<OpenedAt> {
        let devices = Devices::open(&[device; DEPTH], 1, precision)?;
        Ok(OpenedAt { precision, devices, size })
    };
    let f32 = open(Precision::F32)?;
    if !device.has_streams::<Kernels>() {
        // A processor may lack the instructions for bf16.
        let bf16 = open(Precision::Bf16).ok();
        let all = [Some(&f32), bf16.as_ref()].into_iter().flatten();
        return Ok(all.flat_map(OpenedAt::on_host).collect());
    }
    let bf16 = match open(Precision::Bf16) {
        Ok(bf16) => bf16,
        Err(reason) => {
            let reason = format!("{reason:#}");
            let act = Box::new(move |mut suite: Suite| suite.fail("start", &reason));
            let start = f32.part("start", 10, |_, _| {});
            return Ok(vec![
                Part { precision: Precision::Bf16, act, ..start },
                f32.part("kernels", 60, kernels),
                f32.part("training", 60, training),
                f32.part("steps", 180, steps_of),
                f32.part("layers", 60, layers_of),
            ]);
        }
    };
    let tf32 = open(Precision::Tf32)?;
    Ok(vec![
        f32.part("kernels", 60, kernels),
        bf16.part("kernels", 60, kernels),
        f32.part("training", 60, training),
        bf16.part("training", 60, training),
        bf16.values(&f32),
        f32.values(&f32),
        bf16.part("steps", 120, steps_of),
        f32.part("NCCL", 120, |mut suite, devices| nccl::ranks(&mut suite, devices)),
        f32.part("memory", 90, memory_of),
        f32.part("out of memory", 20, out_of_memory),
        bf16.part("layers", 60, layers_of),
        tf32.part("kernels", 60, kernels),
        tf32.values(&f32),
        tf32.part("training", 60, training),
        tf32.part("steps", 120, steps_of),
        f32.part("steps", 180, steps_of),
        f32.part("layers", 60, layers_of),
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
    let done = devices.run(LayerSpeeds(&mut suite));
    suite.done(done);
}

fn steps_of(mut suite: Suite, devices: &Devices) {
    let done = devices.run(StepTrials { suite: &mut suite, devices });
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

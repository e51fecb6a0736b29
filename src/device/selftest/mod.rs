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

/// Returns all parts, the most valuable first.
fn parts(options: &Options) -> Result<Vec<Part>> {
    let device = if options.device.has_streams::<Kernels>() {
        options.device
    } else {
        options.device.numbered::<Kernels>(0)?
    };
    let open = |precision| Devices::open(&[device; DEPTH], 1, precision);
    let f32 = open(Precision::F32)?;
    let part = |devices: &Devices, precision, name, seconds, act: fn(Suite, &Devices)| {
        let devices = devices.clone();
        let device = devices.by_rank().first().map(OpenDevice::name).unwrap_or_default();
        let limit = Duration::from_secs(match options.size {
            Size::Small => 600, // on any CPU
            Size::Full => seconds,
        });
        let act = Box::new(move |suite: Suite| act(suite, &devices));
        Part { name, device, precision, limit, act }
    };
    let on_f32 = |name, seconds, act| part(&f32, Precision::F32, name, seconds, act);
    if !device.has_streams::<Kernels>() {
        let usual = |devices: &Devices, precision| {
            let on = |name, act| part(devices, precision, name, 600, act);
            [
                on("kernels", kernels),
                on("training", training),
                on("layers", layers_of),
                on("steps", steps_of),
            ]
        };
        // A processor may lack the instructions for bf16.
        let bf16 = open(Precision::Bf16).ok().map(|devices| usual(&devices, Precision::Bf16));
        return Ok(usual(&f32, Precision::F32)
            .into_iter()
            .chain(bf16.into_iter().flatten())
            .collect());
    }
    let bf16 = match open(Precision::Bf16) {
        Ok(bf16) => bf16,
        Err(reason) => {
            let mut start = on_f32("start", 10, |_, _| {});
            start.precision = Precision::Bf16;
            let reason = format!("{reason:#}");
            start.act = Box::new(move |mut suite| suite.fail("start", &reason));
            return Ok(vec![
                start,
                on_f32("kernels", 60, kernels),
                on_f32("training", 60, training),
                on_f32("steps", 180, steps_of),
                on_f32("layers", 60, layers_of),
            ]);
        }
    };
    let on_bf16 = |name, seconds, act| part(&bf16, Precision::Bf16, name, seconds, act);
    let tf32 = open(Precision::Tf32)?;
    let on_tf32 = |name, seconds, act| part(&tf32, Precision::Tf32, name, seconds, act);
    let values = |devices: &Devices, precision| {
        let (generic, tiled) = (f32.generic().poisoned(), devices.poisoned());
        let mut values = part(devices, precision, "values", 60, |_, _| {});
        values.act = Box::new(move |mut suite| values::attention(&mut suite, &generic, &tiled));
        values
    };
    Ok(vec![
        on_f32("kernels", 60, kernels),
        on_bf16("kernels", 60, kernels),
        on_f32("training", 60, training),
        on_bf16("training", 60, training),
        values(&bf16, Precision::Bf16),
        values(&f32, Precision::F32),
        on_bf16("steps", 120, steps_of),
        on_f32("NCCL", 120, |mut suite, devices| nccl::ranks(&mut suite, devices)),
        on_f32("memory", 90, memory_of),
        on_f32("out of memory", 20, out_of_memory),
        on_bf16("layers", 60, layers_of),
        on_tf32("kernels", 60, kernels),
        values(&tf32, Precision::Tf32),
        on_tf32("training", 60, training),
        on_tf32("steps", 120, steps_of),
        on_f32("steps", 180, steps_of),
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

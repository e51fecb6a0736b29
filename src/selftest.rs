//! What a device must do and how fast it does it, by the built program alone: conformance of its kernels,
//! equivalence of training, and measurements.

use std::time::Instant;

use anyhow::{Context, Result};
use chimera_backend_cuda::Candle;
use chimera_core::equivalence::{Run, Trained};
use chimera_core::kernels::{Activation, AdamW, Kernels, Layout, Mask, conformance};
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Shape;
use serde::Serialize;

use crate::device::{Compute, Device, Devices, Precision, Usage};

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

/// Tries and measures `device`; `observe` hears of each result as it comes.
///
/// # Errors
/// If the device cannot be opened. That it fails later is a result.
pub fn run(device: Device, size: Size, mut observe: impl FnMut(&str)) -> Result<Report> {
    let mut report = Report {
        device: String::new(),
        version: env!("CARGO_PKG_VERSION"),
        checks: Vec::new(),
        measurements: Vec::new(),
    };
    let precisions = match device {
        Device::Cuda(_) => &[Precision::F32, Precision::Bf16][..],
        _ => &[Precision::F32],
    };
    for &precision in precisions {
        let devices = Devices::open(&[device; DEPTH], 1, precision)?;
        report.device = devices.by_rank().first().context("no device")?.name();
        let usage = || devices.usage();
        let mut suite =
            Suite { precision, size, usage: &usage, report: &mut report, observe: &mut observe };
        devices.poisoned().run(Conformance(&mut suite))?;
        devices.run(Equivalence(&mut suite))?;
        devices.run(Speed(&mut suite))?;
    }
    Ok(report)
}

/// What the parts have in common.
struct Suite<'s> {
    precision: Precision,
    size: Size,
    usage: &'s dyn Fn() -> Option<Usage>,
    report: &'s mut Report,
    observe: &'s mut dyn FnMut(&str),
}

impl Suite<'_> {
    fn check(&mut self, what: String, value: f64, limit: f64, at: String) {
        let check = Check { what: format!("{what}, {}", self.precision), value, limit, at };
        let verdict = if check.passes() { "ok" } else { "FAILED" };
        let at = if check.passes() { "" } else { &check.at };
        (self.observe)(&format!("{:<52} {value:>9.1e} {verdict:>7}  {at}", check.what));
        self.report.checks.push(check);
    }

    fn measure(&mut self, what: &str, value: f64, unit: &'static str) {
        let what = format!("{what}, {}", self.precision);
        (self.observe)(&format!("{what:<52} {value:>9.4} {unit}"));
        self.report.measurements.push(Measurement { what, value, unit });
    }

    /// The losses of a run, or a failed check.
    fn train<K: Kernels>(&mut self, what: &str, run: &Run, by_rank: &[K]) -> Option<Trained> {
        let trained = run.train(|rank| Ok(by_rank[rank.index() % by_rank.len()].clone()));
        match trained {
            Ok(trained) => Some(trained),
            Err(e) => {
                self.check(what.to_string(), f64::INFINITY, 0.0, e.to_string());
                None
            }
        }
    }
}

/// Every kernel against the reference in f64.
struct Conformance<'a, 's>(&'a mut Suite<'s>);

impl Compute for Conformance<'_, '_> {
    type Output = ();

    fn on<K: Kernels>(self, by_rank: &[K]) {
        let suite = self.0;
        let (limit, round): (f64, fn(f32) -> f32) = match suite.precision {
            Precision::F32 => (1e-5, |x| x),
            Precision::Bf16 => (1e-2, |x| half::bf16::from_f32(x).to_f32()),
        };
        for case in conformance::cases::<K>() {
            let (value, at) = match case.check(&by_rank[0], round) {
                Ok(worst) => (worst.error, worst.at),
                Err(failure) => (f64::INFINITY, failure.to_string()),
            };
            suite.check(format!("kernel {}", case.name), value, limit, at);
        }
    }
}

/// Losses of schedules against those of one worker on the CPU.
struct Equivalence<'a, 's>(&'a mut Suite<'s>);

impl Compute for Equivalence<'_, '_> {
    type Output = ();

    fn on<K: Kernels>(self, by_rank: &[K]) {
        let suite = self.0;
        let limit = LOSS_TOLERANCES.into_iter().find(|(p, _)| *p == suite.precision);
        let limit = limit.map_or(0.0, |(_, limit)| limit);
        let model = ModelConfig {
            architecture: Architecture::Gpt2,
            layers: 4,
            hidden: 64,
            heads: 4,
            context: 32,
            vocab: 256,
            tied: false,
        };
        let run = |schedule, depth| {
            let (model, shape) = (model.clone(), Shape::new(depth, 4));
            Run { schedule, shape, model, micro_batch_size: 2, steps: 10 }
        };
        let what = "training on the CPU";
        let Some(expected) = suite.train(what, &run("dapple", 1), &[Candle::cpu()]) else { return };
        let runs = [("dapple", 1), ("1f1b", 2), ("1f1b", 4), ("chimera", 2), ("chimera", 4)];
        for (schedule, depth) in runs {
            let what = format!("losses of {schedule} with {depth} worker(s)");
            let Some(got) = suite.train(&what, &run(schedule, depth), by_rank) else { continue };
            let errors = got.losses.iter().zip(&expected.losses).map(|(a, b)| ((a - b) / b).abs());
            // A loss that is not a number is no maximum, and must not pass.
            let worst = errors.fold(0.0, |m: f64, e| if e.is_nan() { f64::NAN } else { m.max(e) });
            let at = format!("{:?} instead of {:?}", got.losses, expected.losses);
            suite.check(what, worst, limit, at);
        }
    }
}

/// How fast products, layers and steps are.
struct Speed<'a, 's>(&'a mut Suite<'s>);

impl Compute for Speed<'_, '_> {
    type Output = ();

    fn on<K: Kernels>(self, by_rank: &[K]) {
        let suite = self.0;
        if let Err(e) = layers(suite, &by_rank[0]) {
            suite.check("layers".into(), f64::INFINITY, 0.0, e.to_string());
        }
        steps(suite, by_rank);
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

fn layers<K: Kernels>(suite: &mut Suite<'_>, k: &K) -> chimera_core::kernels::Result<()> {
    let Sizes { model, micro_batch_size, least, .. } = suite.size.sizes();
    let ModelConfig { hidden, heads, context, vocab, .. } = model;
    let rows = context * micro_batch_size;
    let n = |shape: &[usize]| shape.iter().product::<usize>();
    let some = |shape: &[usize]| {
        let values = (0..n(shape)).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5);
        k.upload(shape, &values.collect::<Vec<_>>())
    };
    // Activations as the device has them.
    let one = k.activation(&some(&[rows, hidden])?, Activation::Tanh)?;
    let wide = k.activation(&some(&[rows, 4 * hidden])?, Activation::Tanh)?;
    let qkv = k.activation(&some(&[rows, 3 * hidden])?, Activation::Tanh)?;
    let w = some(&[hidden, 4 * hidden])?;
    let mut dw = k.zeros(&[hidden, 4 * hidden])?;
    let (gain, bias) = (some(&[hidden])?, some(&[4 * hidden])?);

    let product = 2.0 * (rows * hidden * 4 * hidden) as f64;
    let shape = format!("{rows} x {hidden} x {}", 4 * hidden);
    let seconds = time(k, least, || k.linear(&one, &w, Layout::InOut, None, None))?;
    suite.measure(&format!("linear {shape}"), product / seconds * 1e-12, "TFLOP/s");
    let seconds = time(k, least, || k.linear(&one, &w, Layout::InOut, Some(&bias), Some(&wide)))?;
    suite.measure(
        &format!("linear with bias, residual {shape}"),
        product / seconds * 1e-12,
        "TFLOP/s",
    );
    let seconds = time(k, least, || k.linear_dx(&wide, &w, Layout::InOut))?;
    suite.measure(&format!("linear_dx {shape}"), product / seconds * 1e-12, "TFLOP/s");
    let seconds = time(k, least, || {
        k.linear_dw(&one, &wide, Layout::InOut, &mut dw, None)?;
        Ok(dw.clone())
    })?;
    suite.measure(&format!("linear_dw {shape}"), product / seconds * 1e-12, "TFLOP/s");

    let (out, log_sum) = k.attention(&qkv, heads, context, Mask::Causal, None)?;
    // Half of all pairs see each other; two products forwards, five backwards.
    let pairs = 2.0 * (rows * context / 2 * hidden) as f64;
    let seconds = time(k, least, || Ok(k.attention(&qkv, heads, context, Mask::Causal, None)?.0))?;
    suite.measure("attention", 2.0 * pairs / seconds * 1e-12, "TFLOP/s");
    let seconds = time(k, least, || {
        k.attention_dx(&one, &qkv, &out, &log_sum, heads, context, Mask::Causal, None)
    })?;
    suite.measure("attention_dx", 5.0 * pairs / seconds * 1e-12, "TFLOP/s");

    let (_, stats) = k.layer_norm(&one, &gain, &gain, 1e-5)?;
    let (mut d_gain, mut d_bias) = (k.zeros(&[hidden])?, k.zeros(&[hidden])?);
    let seconds = time(k, least, || Ok(k.layer_norm(&one, &gain, &gain, 1e-5)?.0))?;
    suite.measure("layer_norm", seconds * 1e3, "ms");
    let seconds = time(k, least, || k.layer_norm_dx(&one, &one, &stats, &gain, Some(&one)))?;
    suite.measure("layer_norm_dx", seconds * 1e3, "ms");
    let seconds = time(k, least, || {
        k.layer_norm_dw(&one, &one, &stats, &mut d_gain, &mut d_bias)?;
        Ok(d_gain.clone())
    })?;
    suite.measure("layer_norm_dw", seconds * 1e3, "ms");
    let seconds = time(k, least, || k.activation(&wide, Activation::GeluTanh))?;
    suite.measure("gelu", seconds * 1e3, "ms");
    let seconds = time(k, least, || Ok(k.activation_dx(&wide, &wide, Activation::GeluTanh)?.0))?;
    suite.measure("gelu_dx", seconds * 1e3, "ms");

    let (head, targets) = (some(&[vocab, hidden])?, vec![1; rows]);
    let seconds = time(k, least, || k.linear(&one, &head, Layout::OutIn, None, None))?;
    suite.measure("logits", seconds * 1e3, "ms");
    let with_loss = time(k, least, || {
        let logits = k.linear(&one, &head, Layout::OutIn, None, None)?;
        Ok(k.cross_entropy(logits, &targets, 1.0)?.0)
    })?;
    suite.measure("logits and cross_entropy", with_loss * 1e3, "ms");

    let (mut weights, gradient) = (some(&[vocab, hidden])?, some(&[vocab, hidden])?);
    let (mut m, mut v) = (k.zeros(&[vocab, hidden])?, k.zeros(&[vocab, hidden])?);
    let by = AdamW {
        lr: 1e-4,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        update: 1,
        grad_scale: 1.0,
    };
    let seconds = time(k, least, || {
        k.adamw(&mut weights, &gradient, &mut m, &mut v, &by)?;
        Ok(weights.clone())
    })?;
    // Four tensors read and three written.
    let bytes = 7.0 * 4.0 * (vocab * hidden) as f64;
    suite.measure("adamw", bytes / seconds * 1e-9, "GB/s");
    Ok(())
}

/// Steps of one worker, and of pipelines that do the same work.
fn steps<K: Kernels>(suite: &mut Suite<'_>, by_rank: &[K]) {
    let Sizes { model, micro_batch_size, steps, .. } = suite.size.sizes();
    let n_micro_batches = 2 * DEPTH as u32;
    let tokens = (micro_batch_size * n_micro_batches as usize * model.context) as f64;
    let mut alone = None;
    for (schedule, depth) in [("dapple", 1), ("1f1b", DEPTH), ("chimera", DEPTH)] {
        let what = format!("{schedule} with {depth} worker(s)");
        let shape = Shape::new(depth, n_micro_batches);
        let warm = Run { schedule, shape, model: model.clone(), micro_batch_size, steps: 3 };
        if suite.train(&what, &warm, by_rank).is_none() {
            continue;
        }
        let before = (suite.usage)();
        let run = Run { steps, ..warm };
        let Some(mut trained) = suite.train(&what, &run, by_rank) else { continue };
        let mut seconds = trained.seconds.split_off(1);
        seconds.sort_by(f64::total_cmp);
        let median = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
        suite.measure(&format!("step of {what}"), tokens / median, "tokens/s");
        match alone {
            None => alone = Some(median),
            Some(alone) => suite.measure(&format!("{what} / one worker"), median / alone, "times"),
        }
        if let (Some(before), Some(after)) = (before, (suite.usage)()) {
            let gib = 1024f64.powi(3);
            suite.measure(&format!("peak memory of {what}"), after.peak_bytes as f64 / gib, "GiB");
            let grown = after.reserved_bytes.saturating_sub(before.reserved_bytes);
            suite.check(format!("bytes allocated by {what}"), grown as f64, 0.0, String::new());
            let waits = (after.n_waits - before.n_waits) as f64 / steps as f64;
            suite.measure(&format!("host waits per step of {what}"), waits, "times");
        }
    }
}

/// Seconds of one call, over as many as take a while.
fn time<K: Kernels>(
    k: &K,
    least: f64,
    mut call: impl FnMut() -> chimera_core::kernels::Result<K::Tensor>,
) -> chimera_core::kernels::Result<f64> {
    let finish = |last: K::Tensor| k.download(&k.rows(&last, 0, 1)?); // waits for all before it
    finish(call()?)?;
    let mut n = 1;
    loop {
        let start = Instant::now();
        for _ in 1..n {
            call()?;
        }
        finish(call()?)?;
        let seconds = start.elapsed().as_secs_f64();
        if seconds >= least {
            return Ok(seconds / f64::from(n));
        }
        n *= 2;
    }
}

//! Steps of GPT-2: their speed and their memory.

use chimera_core::device::KernelTime;
use chimera_core::layers::Layers;
use chimera_core::lower::Recompute;
use chimera_core::model::ModelConfig;
use chimera_core::schedule::Shape;
use chimera_testkit::equivalence::{TrialResult, TrialRun};

use super::DEPTH;
use super::size::Sizes;
use super::suite::Suite;
use super::values::{first_loss, n_differing};
use crate::device::{Compute, Devices, OpenDevice, Precision, Usage};

/// Largest difference between the loss of an untrained model and its expected loss, in nats.
const LOSS_TOLERANCE: f64 = 0.1;
/// Largest difference that another order of adding up micro-batches makes to a loss.
const SUM_TOLERANCE: f64 = 1e-5;
const GIB: f64 = (1u64 << 30) as f64;

/// Trains with one worker, and with pipelines that do the same work.
pub(super) struct StepTrials<'s> {
    pub(super) suite: &'s mut Suite,
    pub(super) devices: &'s Devices,
}

impl Compute for StepTrials<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        let StepTrials { suite, devices } = self;
        let Sizes { model, micro_batch_size, steps, .. } = suite.size.sizes();
        // Without tensor cores steps take many times as long.
        let steps = if suite.precision == Precision::Bf16 { steps } else { steps / 2 };
        let n_micro_batches = 2 * DEPTH as u32;
        let tokens = (micro_batch_size * n_micro_batches as usize * model.context) as f64;
        let (mut alone, mut loss_of_one) = (None, None);
        for (schedule, depth) in [("1f1b", 1), ("1f1b", DEPTH), ("chimera", DEPTH)] {
            let what = format!("{schedule} with {depth} worker(s)");
            let (shape, model) = (Shape::new(depth, n_micro_batches), model.clone());
            let recompute = Recompute::None;
            let run = TrialRun {
                schedule,
                shape,
                model,
                recompute,
                split_backward: false,
                micro_batch_size,
                steps,
            };
            devices.reset_peak();
            let Some(first) = suite.train(&what, &run, by_rank) else { continue };
            let held = devices.peaks();
            devices.reset_peak();
            // Work before the first step does not count as part of a step.
            let at_start = devices.usage();
            let Some(_) = suite.train(&what, &TrialRun { steps: 1, ..run.clone() }, by_rank) else {
                continue;
            };
            let before = devices.usage();
            let Some(mut trained) = suite.train(&what, &run, by_rank) else { continue };
            let of_one = *loss_of_one.get_or_insert(trained.losses[0]);
            first_step(suite, &what, [&first, &trained], &run.model, of_one);
            let mut seconds = trained.seconds.split_off(1);
            seconds.sort_by(f64::total_cmp);
            let median = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
            suite.measure(&format!("step of {what}"), tokens / median, "tokens/s");
            let name = by_rank[0].name();
            if let Some(peak) = peak_flops(&name, suite.precision).filter(|_| depth == 1) {
                let share = run.model.flops_per_token(run.model.context) * tokens / median / peak;
                suite.measure(&format!("share of peak flops of {what}"), 100.0 * share, "%");
            }
            match alone {
                None => alone = Some(median),
                Some(alone) => {
                    suite.measure(&format!("{what} / one worker"), median / alone, "times");
                }
            }
            if let (Some(at_start), Some(before), Some(after)) = (at_start, before, devices.usage())
            {
                usage(suite, &what, steps, [at_start, before, after]);
            }
            if let (Some(first), Some(again)) = (held, devices.peaks()) {
                let n_more = first.iter().zip(&again).filter(|(first, again)| again > first);
                let at = format!("{again:?} bytes, {first:?} before");
                suite.check(
                    format!("workers that hold more in a second run of {what}"),
                    n_more.count() as f64,
                    0.0,
                    at,
                );
            }
            if depth == 1 {
                launches(suite, &what, &run, by_rank);
            }
        }
    }
}

/// Measures the memory and the launches of a training, from the usage before a single step, after
/// it, and after all `steps`.
fn usage(suite: &mut Suite, what: &str, steps: u64, [at_start, before, after]: [Usage; 3]) {
    let per_step = |count: fn(&Usage) -> u64| {
        let of_one = (count(&before) - count(&at_start)) as f64;
        ((count(&after) - count(&before)) as f64 - of_one) / (steps - 1) as f64
    };
    let peak = after.peak_bytes as f64 / GIB;
    suite.measure(&format!("peak memory of {what}"), peak, "GiB");
    // Memory that one stream frees is available to another only when its work is done, and the host
    // runs ahead by up to a step.
    let reserved = after.reserved_bytes as f64 / GIB;
    suite.measure(&format!("memory reserved by {what}"), reserved, "GiB");
    let grown = after.reserved_bytes as f64 / before.reserved_bytes as f64 - 1.0;
    suite.measure(&format!("growth in a second run of {what}"), 100.0 * grown, "%");
    let waits = per_step(|usage| usage.n_waits);
    suite.measure(&format!("host waits per step of {what}"), waits, "times");
    let launches = per_step(|usage| usage.n_launches);
    suite.measure(&format!("launches per step of {what}"), launches, "times");
}

/// Measures the time of a step by kernels and by sizes of products. It is a step of its own,
/// because timing takes time.
fn launches<K: Layers>(suite: &mut Suite, what: &str, run: &TrialRun, by_rank: &[K]) {
    let Some(mut clock) = by_rank.first().and_then(|first| first.clock().ok()?) else { return };
    clock.time_kernels(true);
    let trained = suite.train(what, &TrialRun { steps: 1, ..run.clone() }, by_rank);
    clock.time_kernels(false);
    let runs = clock.ages().and_then(|_| clock.kernels()).unwrap_or_default();
    let (times, n) = (KernelTime::sums(&runs), run.shape.n_micro_batches);
    if trained.is_none() || times.is_empty() {
        return;
    }
    let per = format!("of a micro-batch of {what}");
    let mut measure = |name: &str, seconds: f64| {
        suite.measure(&format!("{name} {per}"), seconds / f64::from(n) * 1e3, "ms");
    };
    measure("all launches", times.iter().map(|time| time.seconds).sum());
    times.iter().for_each(|time| measure(&time.name, time.seconds));
    for time in times.iter().filter(|time| time.flops > 0.0) {
        suite.measure(&time.name, time.flops / time.seconds * 1e-12, "TFLOP/s");
    }
}

/// Checks the loss and gradient norm of a training's first step against a second run, an untrained
/// model's expected loss, and one worker.
fn first_step(
    suite: &mut Suite,
    what: &str,
    runs: [&TrialResult; 2],
    model: &ModelConfig,
    of_one: f64,
) {
    let [(loss, norm), (again, norm_again)] = runs.map(|run| (run.losses[0], run.norms[0]));
    let n_differ = n_differing(&[loss, norm], &[again, norm_again]);
    let at = format!("loss {loss} and {again}, norm {norm} and {norm_again}");
    suite.check(format!("bits of {what}, twice"), n_differ, 0.0, at);
    let expected = first_loss(model.hidden, model.vocab);
    let at = format!("{loss} instead of {expected}");
    suite.check(format!("first loss of {what}"), (loss - expected).abs(), LOSS_TOLERANCE, at);
    let (beside, apart) =
        (format!("first loss of {what} / one worker"), (loss / of_one - 1.0).abs());
    suite.check(beside, apart, SUM_TOLERANCE, format!("{loss} instead of {of_one}"));
}

/// Compares the memory of schedules and of recomputation with the memory model.
pub(super) struct Memory<'s> {
    pub(super) suite: &'s mut Suite,
    pub(super) devices: &'s Devices,
}

impl Compute for Memory<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        let Memory { suite, devices } = self;
        let Sizes { model, micro_batch_size, .. } = suite.size.sizes();
        let on_host = devices.by_rank().iter().any(OpenDevice::is_host);
        let activation_bytes = suite.precision.activation_bytes(on_host);
        for (schedule, recompute) in [
            ("1f1b", Recompute::None),
            ("chimera", Recompute::None),
            ("1f1b", Recompute::Full),
            ("chimera", Recompute::Full),
        ] {
            let what = format!("{schedule}, recompute {recompute:?}").to_lowercase();
            let (shape, model) = (Shape::new(DEPTH, 2 * DEPTH as u32), model.clone());
            devices.reset_peak();
            let split_backward = false;
            let run = TrialRun {
                schedule,
                shape,
                model,
                recompute,
                split_backward,
                micro_batch_size,
                steps: 2,
            };
            let Ok(foreseen) = run.foreseen(activation_bytes) else { continue };
            if suite.train(&what, &run, by_rank).is_none() {
                continue;
            }
            let Some(peaks) = devices.peaks() else { return };
            let (mut worst, mut at) = (0.0, String::new());
            for (rank, (held, foreseen)) in peaks.iter().zip(foreseen).enumerate() {
                let [held, foreseen] = [*held as f64 / GIB, foreseen / GIB];
                suite.measure(&format!("memory of rank {rank}, {what}"), held, "GiB");
                suite.measure(&format!("by the model, rank {rank}, {what}"), foreseen, "GiB");
                let error = (held - foreseen).abs() / foreseen;
                if error > worst {
                    at = format!("{held:.3} GiB on rank {rank}, {foreseen:.3} by the model");
                    worst = error;
                }
            }
            suite.check(format!("memory of {what} beside the model"), worst, 0.05, at);
        }
    }
}

/// Peak speed of a GPU of this name with dense matrices, in FLOP/s, from its data sheet.
fn peak_flops(name: &str, precision: Precision) -> Option<f64> {
    // Boards with less power are slower than their name.
    let is_other =
        ["PCIe", "NVL"].iter().any(|board| name.contains(board)) && !name.contains("A100");
    let known = [("H200", 989.5e12), ("H100", 989.5e12), ("A100", 312e12)];
    let (_, peak) = known.into_iter().find(|(part, _)| name.contains(part) && !is_other)?;
    (precision == Precision::Bf16).then_some(peak)
}

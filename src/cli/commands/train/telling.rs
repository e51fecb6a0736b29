//! Reports of a training in progress: on the terminal, in the folder of the run, and to Prometheus.

use std::time::Instant;

use anyhow::Result;
use chimera_backend_cpu::{Bf16Products, measured_peak};
use chimera_core::engine::{Recoveries, StepReport};
use chimera_core::ids::{Rank, StageId, listed};
use chimera_core::model::Objective;
use chimera_core::render::report::named;

use crate::cli::parts::terminal::console::{counted, duration, figure, warn};
use crate::cli::parts::terminal::progress::{Progress, Say};
use crate::cli::parts::training::model::warn_of_bytes;
use crate::cli::parts::training::predicted;
use crate::cli::parts::training::within_step;
use crate::device::{OpenDevice, Precision};
use crate::observe::{Metrics, Prometheus, Stragglers};
use crate::run::{Folder, Observer, Run, Trained};
use crate::settings::{Layout, Origin, Survive};

/// Reports the steps of a run, on rank 0.
pub(crate) struct Telling<'t> {
    run: &'t Run,
    folder: &'t mut Folder,
    prometheus: Option<&'t Prometheus>,
    progress: Progress<'t>,
    stragglers: Stragglers,
    /// Number of windows that were repeated so far.
    n_repeated: u64,
    /// Tokens per second of the devices at their peak.
    full: Option<f64>,
    began: Instant,
}

/// Trains with `go`, which reports every step. Also returns the seconds that this took.
pub(crate) fn told(
    run: &Run,
    folder: &mut Folder,
    prometheus: Option<&Prometheus>,
    say: &Say,
    go: impl FnOnce(&mut Observer<'_>) -> Result<Trained>,
) -> Result<(Trained, f64)> {
    let mut telling = Telling::begin(run, folder, prometheus, say)?;
    let trained = telling.train(go);
    let (_, seconds) = telling.end();
    Ok((trained?, seconds))
}

impl<'t> Telling<'t> {
    /// Prints the parameters of the training that is about to begin.
    pub(crate) fn begin(
        run: &'t Run,
        folder: &'t mut Folder,
        prometheus: Option<&'t Prometheus>,
        say: &'t Say,
    ) -> Result<Telling<'t>> {
        say.line(&headline(run));
        if let Some(line) = other_optimizer(run) {
            say.line(&line);
        }
        if let Some(mixture) = mixture(run) {
            say.line(&mixture);
        }
        if let Some(report) = run.search() {
            say.line(&report.to_string());
        }
        if let Some(prediction) = run.prediction()? {
            if let Some(doubt) = &prediction.doubt {
                warn(doubt);
            }
            say.line(&predicted::before(prediction));
        }
        if let Some(hint) = shared_cores(run) {
            warn(&hint);
        }
        if run.config().model.init.is_some() {
            warn_of_bytes(run.corpus().tokenizer(), run.model().vocab);
        }
        if run.config().devices.survive != Survive::Off {
            say.line(&protection(run));
        }
        if let Some(prometheus) = prometheus {
            say.line(&format!("metrics: http://{}/metrics", prometheus.address()));
        }
        let full = full_tokens_per_s(run)?;
        let progress = Progress::new(run, folder.first_step(), say);
        let (stragglers, began) = (Stragglers::default(), Instant::now());
        let n_repeated = run.n_repeated_before();
        Ok(Telling { run, folder, prometheus, progress, stragglers, n_repeated, full, began })
    }

    /// Trains with `go`, which reports every step.
    pub(crate) fn train<T>(
        &mut self,
        go: impl FnOnce(&mut Observer<'_>) -> Result<T>,
    ) -> Result<T> {
        let Telling { run, folder, prometheus, progress, stragglers, n_repeated, full, .. } = self;
        let mut observe = |report: &StepReport| {
            let mut metrics = Metrics::of(report, run.tokens_per_step(), *full);
            if run.model().objective() == Objective::MaskedTokens {
                metrics.perplexity = None; // its loss has two parts
            }
            folder.record(&metrics, &|problem| progress.warn(problem))?;
            if !report.recoveries.replaced.is_empty() {
                progress.warn(&recovered(report));
            }
            if let Some(why) = &report.skipped {
                progress.warn(&format!("step {} made no update: {why}", report.step));
            }
            if report.n_repeated > *n_repeated {
                *n_repeated = report.n_repeated;
                progress.warn(&format!(
                    "steps from {} on were trained again, one by one: without a border between them an update had not waited \
                     for a gradient that is clipped or not finite",
                    report.step
                ));
            }
            if let Some(told) = stragglers.notice(report) {
                progress.warn(&told);
            }
            if let Some(prometheus) = prometheus {
                prometheus.show(&metrics);
            }
            progress.step(&metrics, folder.best_validation());
            Ok(())
        };
        within_step::show(run.pace().as_deref(), progress, || go(&mut observe))
    }

    /// Ends the display of steps. Returns the folder, and the seconds since the beginning.
    pub(crate) fn end(&mut self) -> (&Folder, f64) {
        self.progress.finish();
        (self.folder, self.began.elapsed().as_secs_f64())
    }
}

/// Describes the deaths that the run survives because replicas hold the same state.
fn protection(run: &Run) -> String {
    let (placement, width) = (run.program().placement(), run.config().schedule.width);
    let holders = (0..placement.n_stages() as u16).map(|id| placement.holders(width, StageId(id)));
    let mut alone: Vec<Rank> = holders.filter(|ranks| ranks.len() == 1).flatten().collect();
    alone.sort_unstable();
    alone.dedup();
    let every = run.config().devices.shadow_every;
    if every > 0 {
        return format!(
            "survives the death of any rank: the next rank has a copy of what no replica holds, renewed every {every} steps; \
             at most {every} steps are then computed again"
        );
    }
    if alone.is_empty() {
        return "survives the death of any rank: replicas hold every stage".into();
    }
    let then = match run.config().checkpoints.save_every {
        0 => "lose the run: it saves no checkpoints (--save-every)".to_string(),
        every => format!("end the run, which saves every {every} steps"),
    };
    format!("stages are held once, by {}: their deaths {then}", listed(&alone))
}

/// Describes a recovery before a step.
fn recovered(report: &StepReport) -> String {
    let Recoveries { n, lost_s, replaced } = &report.recoveries;
    let (places, step, lost) = (listed(replaced), report.step, duration(*lost_s));
    format!(
        "processes took the place of {places} in step {step}; {n} recoveries so far took {lost}"
    )
}

/// Returns the tokens per second of a run's devices at their peak, if that is given or can be
/// measured.
fn full_tokens_per_s(run: &Run) -> Result<Option<f64>> {
    let config = run.config();
    let n_workers = config.schedule.width * config.schedule.depth;
    let peak = match config.devices.peak_flops {
        Some(of_a_worker) => of_a_worker * n_workers as f64,
        None if !run.devices().one().is_some_and(OpenDevice::is_host) => return Ok(None),
        None => {
            let of_a_thread = match config.devices.precision {
                Precision::Bf16 => Bf16Products::fastest().peak(),
                Precision::F32 | Precision::Tf32 => None,
            };
            let of_a_thread = of_a_thread.unwrap_or_else(measured_peak);
            run.cores().min(n_workers * config.devices.threads) as f64 * of_a_thread
        }
    };
    Ok(Some(peak / run.model().flops_per_token(run.config().model.sequence)))
}

fn headline(run: &Run) -> String {
    let (config, program) = (run.config(), run.program());
    let schedule = match program.window().n_steps() {
        _ if config.schedule.depth == 1 => "one worker".to_string(),
        1 => named(program),
        n => format!("{}, a flush every {n} steps", program.schedule()),
    };
    let schedule = match &config.schedule.layout {
        Layout::Is(partition) if config.schedule.depth > 1 => {
            format!("{schedule}, layout {partition}")
        }
        _ => schedule,
    };
    format!(
        "{} parameters, {} tokens of text; {schedule}, {} x {} worker(s) {}, \
         {} micro-batches of {} x {} tokens",
        run.model().n_params(),
        run.corpus().n_train(),
        config.schedule.width,
        config.schedule.depth,
        workers_of(run),
        config.schedule.micro_batches,
        config.schedule.micro_batch_size,
        config.model.sequence,
    )
}

/// Says that the recipe's optimizer cannot run on the devices, if so.
fn other_optimizer(run: &Run) -> Option<String> {
    let config = run.config();
    let (optimizer, origin) = config.value("optimizer")?;
    let is_of_recipe = matches!(config.value("lr-schedule")?.1, Origin::Recipe);
    let is_other = is_of_recipe && *origin == Origin::Default;
    let devices = &config.devices.device;
    is_other.then(|| {
        let optimizer = optimizer.as_str().unwrap_or_default().to_owned();
        format!(
            "optimizer {optimizer}: {devices} lacks the matrix products of muon, which trains better on the cpu"
        )
    })
}

/// Describes the data mixture: the share of each file, and its number of epochs.
fn mixture(run: &Run) -> Option<String> {
    let config = run.config();
    let weights = config.data.weights.as_ref()?.as_slice();
    let samples_per_step = run.tokens_per_step() / config.model.sequence as u64;
    let epochs = run.corpus().epochs(config.training.steps.saturating_mul(samples_per_step));
    let each = config.data.files.iter().zip(weights).zip(epochs).map(|((file, weight), epochs)| {
        format!("{} {} ({epochs:.2} epochs)", file.display(), figure(*weight))
    });
    Some(format!("mixture: {}", each.collect::<Vec<_>>().join(", ")))
}

/// Describes the devices of the workers.
fn workers_of(run: &Run) -> String {
    match run.devices().one() {
        Some(device) if device.is_host() => {
            let threads = run.config().devices.threads;
            let way = device.bf16_products().map(|way| format!(", bf16 by {way}"));
            format!("with {threads} thread(s) each{}", way.unwrap_or_default())
        }
        Some(device) => format!("on {}", device.name()),
        None => format!("on {}", run.config().devices.device),
    }
}

/// Returns a warning if there are more workers than cores, so that they wait for each other.
pub(super) fn shared_cores(run: &Run) -> Option<String> {
    let config = run.config();
    if !run.devices().one().is_some_and(OpenDevice::is_host) {
        return None;
    }
    let cores = run.cores();
    let threads = config.schedule.width * config.schedule.depth * config.devices.threads;
    let workers = counted((config.schedule.width * config.schedule.depth) as f64, "worker", "s");
    let of_each = match config.devices.threads {
        1 => String::new(),
        n => format!(" of {n} threads each"),
    };
    let on = counted(cores as f64, "core", "s");
    let hint =
        format!("{workers}{of_each} on {on}; the bubble includes time spent waiting for a core");
    (threads > cores).then_some(hint)
}

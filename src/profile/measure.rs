//! Timing the parts of models on a device, call by call, with one worker and with several side by side.
//!
//! All sizes are measured in turn, again and again, so that what disturbs the machine for a while does not fall on one of
//! them alone. The first time does not count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use chimera_core::layers::{Call, Layers};
use chimera_core::model::{Architecture, Llama, ModelConfig};

use super::cache_filler::CacheFiller;
use super::exchange::{self, Exchange};
use super::law::{median, middle};
use super::maps::{self, MapUpdate};
use super::moves;
use super::reference::ReferenceWork;
use super::stage_pass::{Half, HalfCalls, ModelPart, Moments, PassError, ReadyStage, SizedPart};
use super::{FORMAT, LayerTime, Measurements, MoveTime, PartTime, Profile, Workers, build};
use crate::device::{Compute, Device, OpenDevice, Precision, machine};

/// Times each size is measured at least, and at most.
const PASSES: [usize; 2] = [2, 9];
/// How often each size is measured whatever time there is, the first time included.
pub const LEAST_ROUNDS: usize = PASSES[0] + 1;

/// How long the reference work is repeated to learn the machine's present speed, about.
const REFERENCE_TIME: Duration = Duration::from_millis(600);
/// Times it is done then, at least and at most.
const REFERENCE_PASSES: [usize; 2] = [5, 60];

/// Blocks that are measured one behind the other, so that what a backward needs has left the nearest cache as it has in
/// a model of several.
const N_BLOCKS: usize = 2;

/// Widths that are measured unless others are asked for.
const WIDTHS: [usize; 5] = [64, 128, 256, 512, 768];
/// Tokens of a micro-batch that are measured.
const TOKENS: [usize; 5] = [64, 256, 1024, 4096, 16];
/// Products of a block that take more operations than this are left out.
const MOST_FLOPS: f64 = 4e9;
/// Larger matrices of logits are left out.
const MOST_LOGITS: usize = 1 << 20;

/// What is measured of a model: samples of a micro-batch.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The model; how many layers it has does not matter.
    pub model: ModelConfig,
    /// Tokens per sample.
    pub sequence: usize,
    /// Samples of a micro-batch.
    pub samples: usize,
}

/// How far measuring is: sizes done, of how many, in which pass.
pub type MeasureProgress<'p> = dyn Fn(Workers, usize, usize) + Sync + 'p;

/// Sizes between which most small models lie: widths by tokens, with lengths of samples, features of heads, and
/// vocabularies that vary along with them.
pub fn samples(architecture: Architecture) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (w, hidden) in WIDTHS.into_iter().enumerate() {
        for (t, tokens) in TOKENS.into_iter().enumerate() {
            let flops = 24.0 * (hidden * hidden * tokens) as f64;
            if flops > MOST_FLOPS {
                continue;
            }
            let sequence = [64, 256, 512, 128][(w + t) % 4].min(tokens);
            let head_dim = [32, 64, 16, 128][(w + 2 * t) % 4].min(hidden);
            let vocab = [256, 4096, 1024][(w + t) % 3].min(MOST_LOGITS / tokens);
            let heads = hidden / head_dim;
            let llama = (architecture == Architecture::LLAMA).then(|| Llama::usual(hidden, heads));
            let context = sequence;
            let tied = false;
            let model = ModelConfig {
                architecture,
                layers: 1,
                hidden,
                heads,
                context,
                vocab,
                tied,
                llama,
                end_of_text: None,
            };
            samples.push(Sample { model, sequence, samples: tokens / sequence });
        }
    }
    samples
}

/// Measures samples on a device with each number of workers, in about so much time.
///
/// # Errors
/// If the device cannot be opened, or fails.
pub fn measure(
    device: Device,
    precision: Precision,
    samples: &[Sample],
    settings: &[Workers],
    time: Duration,
    date: String,
    progress: &MeasureProgress<'_>,
) -> Result<Profile> {
    let mut measured = Vec::new();
    let mut name = String::new();
    for workers in settings {
        let opened = OpenDevice::open(device, 0, precision)?;
        name = opened.model();
        let time = time / settings.len() as u32;
        let timings =
            opened.run(Measuring { samples, workers: *workers, time, passes: PASSES, progress })?;
        let mut timed = timings.measured(*workers, samples);
        if workers.workers > 1 && opened.is_host() {
            let Exchange { messages, reductions, sync_s } = opened.run(Exchanging(*workers))?;
            timed = Measurements { messages, reductions, sync_s, ..timed };
        }
        let moves = opened.run(Moving(*workers))?;
        measured.push(Measurements { moves, ..timed });
    }
    Ok(Profile {
        format: FORMAT,
        build: build(),
        date,
        machine: machine(),
        device: name,
        precision: precision.to_string(),
        measured,
    })
}

/// What the reference work takes on a device now, of so many workers at once.
pub(super) fn reference_now(device: &OpenDevice, workers: Workers) -> Result<f64> {
    let (time, passes) = (REFERENCE_TIME, REFERENCE_PASSES);
    let progress: &MeasureProgress<'_> = &|_, _, _| {};
    let timings = device.run(Measuring { samples: &[], workers, time, passes, progress })?;
    Ok(timings.measured(workers, &[]).reference_s)
}

/// All that was timed.
#[derive(Default)]
struct Timings {
    layers: BTreeMap<(&'static str, Vec<usize>), Vec<f64>>,
    /// Seconds in all, and in layers, by sample, part and half.
    parts: BTreeMap<(usize, ModelPart, Half), (Vec<f64>, Vec<f64>)>,
    /// Seconds of the reference work.
    reference: Vec<f64>,
}

impl Timings {
    fn add_calls(&mut self, calls: impl IntoIterator<Item = Call>) {
        for Call { layer, extents, seconds } in calls {
            self.layers.entry((layer, extents)).or_default().push(seconds);
        }
    }

    fn add(&mut self, sample: usize, part: ModelPart, did: Vec<HalfCalls>) {
        for HalfCalls { half, calls, seconds, .. } in did {
            if calls.is_empty() {
                continue;
            }
            let (all, layers) = self.parts.entry((sample, part, half)).or_default();
            let n = if part == ModelPart::Block { N_BLOCKS as f64 } else { 1.0 };
            layers.push(calls.iter().map(|call| call.seconds).sum::<f64>() / n);
            all.push(seconds / n);
            self.add_calls(calls);
        }
    }

    fn extend(&mut self, other: Timings) {
        for (key, times) in other.layers {
            self.layers.entry(key).or_default().extend(times);
        }
        for (key, (all, layers)) in other.parts {
            let mine = self.parts.entry(key).or_default();
            mine.0.extend(all);
            mine.1.extend(layers);
        }
        self.reference.extend(other.reference);
    }

    fn measured(
        mut self,
        Workers { workers, threads }: Workers,
        samples: &[Sample],
    ) -> Measurements {
        let layer = |((layer, extents), mut times): ((&str, Vec<usize>), Vec<f64>)| {
            let (count, (seconds, spread)) = (times.len(), middle(&mut times)?);
            Some(LayerTime { layer: layer.into(), extents, count, seconds, spread })
        };
        let part = |((sample, part, op), (mut all, mut layers)): (
            (usize, ModelPart, Half),
            (Vec<f64>, Vec<f64>),
        )| {
            let Sample { model, sequence, samples } = &samples[sample];
            let (seconds, spread) = middle(&mut all)?;
            Some(PartTime {
                model: model.architecture.name().into(),
                hidden: model.hidden,
                heads: model.heads,
                vocab: model.vocab,
                sequence: *sequence,
                samples: *samples,
                part,
                op,
                seconds,
                spread,
                in_layers: (median(&mut layers) / seconds).min(1.0),
            })
        };
        let layers = self.layers.into_iter().filter_map(layer).collect();
        Measurements {
            workers,
            threads,
            layers,
            parts: self.parts.into_iter().filter_map(part).collect(),
            messages: Vec::new(),
            reductions: Vec::new(),
            sync_s: 0.0,
            reference_s: median(&mut self.reference),
            moves: Vec::new(),
        }
    }
}

/// Workers that measure samples, and the reference work between them, side by side.
struct Measuring<'m> {
    samples: &'m [Sample],
    workers: Workers,
    time: Duration,
    /// How often each is measured at least, and at most.
    passes: [usize; 2],
    progress: &'m MeasureProgress<'m>,
}

impl Compute for Measuring<'_> {
    type Output = Result<Timings>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        let device = by_rank.first().context("there is no device")?;
        let n = self.workers.workers;
        let (barrier, goes_on) = (Barrier::new(n), AtomicBool::new(true));
        let together = Mutex::new(Ok(Timings::default()));
        let deadline = Instant::now() + self.time;
        let pool = || rayon::ThreadPoolBuilder::new().num_threads(self.workers.threads).build();
        let pools = (0..n).map(|_| pool()).collect::<Result<Vec<_>, _>>()?;
        std::thread::scope(|scope| {
            for (worker, pool) in pools.into_iter().enumerate() {
                let (this, together, barrier, goes_on) = (&self, &together, &barrier, &goes_on);
                scope.spawn(move || {
                    let pace = Turns { barrier, goes_on, leads: worker == 0, deadline };
                    let timed = pool.install(|| this.worker(device, &pace));
                    let mut all = together.lock().unwrap_or_else(PoisonError::into_inner);
                    match (&mut *all, timed) {
                        (Ok(all), Ok(timed)) => all.extend(timed),
                        (all, Err(error)) => *all = Err(error),
                        (Err(_), _) => {}
                    }
                });
            }
        });
        let timings = together.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(timings?)
    }
}

/// Workers that exchange messages and gradients.
struct Exchanging(Workers);

impl Compute for Exchanging {
    type Output = Result<Exchange>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        exchange::measure(by_rank.first().context("there is no device")?, self.0)
    }
}

/// Workers that move activations out of memory and back.
struct Moving(Workers);

impl Compute for Moving {
    type Output = Result<Vec<MoveTime>>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        moves::measure(by_rank.first().context("there is no device")?, self.0)
    }
}

/// What keeps workers together.
struct Turns<'p> {
    barrier: &'p Barrier,
    goes_on: &'p AtomicBool,
    leads: bool,
    deadline: Instant,
}

impl Measuring<'_> {
    /// Measures as one worker of several. A worker that has failed still keeps the others' pace.
    fn worker<K: Layers>(&self, device: &K, pace: &Turns<'_>) -> Result<Timings, PassError> {
        let models = self.samples.iter().map(|sample| &sample.model);
        let prepared = ReferenceWork::new(device).and_then(|work| {
            let filler =
                (!self.samples.is_empty()).then(|| CacheFiller::new(device)).transpose()?;
            Ok((work, maps::of_blocks(device, models)?, filler))
        });
        let (mut timings, mut prepared) = match prepared {
            Ok(prepared) => (Ok(Timings::default()), Some(prepared)),
            Err(error) => (Err(error), None),
        };
        for pass in 0..=self.passes[1] {
            if pace.leads {
                let is_enough = pass > self.passes[0] && Instant::now() >= pace.deadline;
                pace.goes_on.store(!is_enough, Ordering::Relaxed);
            }
            pace.barrier.wait();
            if !pace.goes_on.load(Ordering::Relaxed) {
                break;
            }
            let mut turn = |act: &mut dyn FnMut(&mut Timings) -> Result<(), PassError>| {
                let done = match &mut timings {
                    Ok(all) => act(all),
                    Err(_) => {
                        pace.barrier.wait();
                        Ok(())
                    }
                };
                if let Err(error) = done {
                    timings = Err(error);
                }
            };
            for number in 0..=self.samples.len() {
                turn(&mut |all| {
                    pace.barrier.wait();
                    let work = prepared.as_mut().map(|(reference, ..)| reference);
                    let timed = work.map(ReferenceWork::time).transpose()?;
                    all.reference.extend(timed.filter(|_| pass > 0));
                    Ok(())
                });
                let Some(sample) = self.samples.get(number) else { continue };
                for part in ModelPart::ALL {
                    let filler = prepared.as_ref().and_then(|(.., filler)| filler.as_ref());
                    turn(&mut |all| {
                        let did = self.part(device, pace, (part, sample), filler)?;
                        if pass > 0 {
                            let (halves, updates) = did;
                            all.add(number, part, halves);
                            all.add_calls(updates);
                        }
                        Ok(())
                    });
                }
                if pace.leads {
                    (self.progress)(self.workers, number + 1, self.samples.len());
                }
            }
            turn(&mut |all| {
                pace.barrier.wait();
                let maps = prepared.as_mut().map_or(&mut [][..], |(_, maps, _)| &mut maps[..]);
                let timed = maps.iter_mut().map(MapUpdate::time).collect::<Result<Vec<_>, _>>()?;
                all.add_calls(timed.into_iter().filter(|_| pass > 0));
                Ok(())
            });
        }
        timings
    }

    /// What a stage of a part did, and the calls of its update.
    fn part<K: Layers>(
        &self,
        device: &K,
        pace: &Turns<'_>,
        (part, sample): (ModelPart, &Sample),
        filler: Option<&CacheFiller<K>>,
    ) -> Result<(Vec<HalfCalls>, Vec<Call>), PassError> {
        let Sample { model, sequence, samples } = sample;
        let work = SizedPart {
            model,
            part,
            n_blocks: N_BLOCKS,
            sequence: *sequence,
            samples: *samples,
            slices: 1,
            dropout: 0.0,
        };
        // A training does all of a step between two updates: caches have nothing left of the moments.
        let moments = Moments::new(device, &work);
        let filled = filler.map_or(Ok(()), CacheFiller::fill);
        let prepared = ReadyStage::new(device, &work, true);
        pace.barrier.wait();
        let (mut moments, mut prepared) = (moments?, prepared?);
        filled?;
        let (did, grads) = prepared.pass()?;
        Ok((did, prepared.update(&grads, &mut moments)?))
    }
}

//! Timing of the parts of models on a device, call by call, with one worker and with several side by side.
//!
//! All sizes are measured in turn, again and again, so that a temporary disturbance of the machine does not
//! affect only one of them. The first time does not count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use chimera_core::layers::Layers;
use chimera_device::{
    AnyKernels, Compute, CoreWatch, Device, OpenDevice, OpenedBy, Precision, machine, n_cores,
    thread_pool,
};

use super::cache_filler::CacheFiller;
use super::exchange::{self, Exchange};
use super::file::{FORMAT, build};
use super::maps::{self, MapUpdate};
use super::moves;
use super::reference::ReferenceWork;
use super::samples::{N_BLOCKS, Sample};
use super::stage_pass::{HalfCalls, ModelPart, Moments, PassError, ReadyStage, SizedPart};
use super::timings::Timings;
use super::{Measurements, MoveTime, Profile, Workers};

/// The least and the most times that each size is measured.
const PASSES: [usize; 2] = [2, 9];
/// The least number of times that each size is measured, including the first.
pub const LEAST_ROUNDS: usize = PASSES[0] + 1;

/// Approximate duration of the repeated reference work, which measures the machine's present speed.
const REFERENCE_TIME: Duration = Duration::from_millis(600);
/// The least and the most repetitions of the reference work in that case.
const REFERENCE_PASSES: [usize; 2] = [5, 60];

/// Called with the progress: workers, sizes done, and all sizes.
pub type MeasureProgress<'p> = dyn Fn(Workers, usize, usize) + Sync + 'p;

/// Measures samples on a device with each number of workers, in about this time.
///
/// # Errors
/// If the device cannot be opened, or fails.
pub fn measure<K: AnyKernels>(
    device: Device,
    precision: Precision,
    samples: &[Sample],
    settings: &[Workers],
    time: Duration,
    date: String,
    progress: &MeasureProgress<'_>,
) -> Result<Profile>
where
    Device: OpenedBy<K>,
{
    let mut measured = Vec::new();
    let mut name = String::new();
    for workers in settings {
        let opened = OpenDevice::<K>::open(device, 0, precision)?;
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

/// Returns the present time of the reference work on a device, with this many workers at once.
pub(super) fn reference_now<K: AnyKernels>(
    device: &OpenDevice<K>,
    workers: Workers,
) -> Result<f64> {
    let (time, passes) = (REFERENCE_TIME, REFERENCE_PASSES);
    let progress: &MeasureProgress<'_> = &|_, _, _| {};
    let timings = device.run(Measuring { samples: &[], workers, time, passes, progress })?;
    Ok(timings.measured(workers, &[]).reference_s)
}

/// Workers that measure samples, with the reference work in between, side by side.
struct Measuring<'m> {
    samples: &'m [Sample],
    workers: Workers,
    time: Duration,
    /// The least and the most times that each is measured.
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
        let pools =
            (0..n).map(|_| thread_pool(self.workers.threads)).collect::<Result<Vec<_>, _>>()?;
        let side_by_side = thread_pool(n)?;
        side_by_side.broadcast(|worker| {
            let leads = worker.index() == 0;
            let pace = Turns { barrier: &barrier, goes_on: &goes_on, leads, deadline };
            let timed = pools[worker.index()].install(|| self.worker(device, &pace));
            let mut all = together.lock().unwrap_or_else(PoisonError::into_inner);
            match (&mut *all, timed) {
                (Ok(all), Ok(timed)) => all.extend(timed),
                (all, Err(error)) => *all = Err(error),
                (Err(_), _) => {}
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

/// The synchronization of workers.
struct Turns<'p> {
    barrier: &'p Barrier,
    goes_on: &'p AtomicBool,
    leads: bool,
    deadline: Instant,
}

impl Turns<'_> {
    /// Prepares something, and acts on it once all workers have prepared. A worker that has failed
    /// still keeps pace with the others.
    fn together<P, R>(
        &self,
        timings: &mut Result<Timings, PassError>,
        prepare: impl FnOnce() -> Result<P, PassError>,
        act: impl FnOnce(&mut Timings, P) -> Result<R, PassError>,
    ) -> Option<R> {
        let prepared = timings.is_ok().then(prepare);
        self.barrier.wait();
        let (Ok(all), Some(prepared)) = (&mut *timings, prepared) else { return None };
        match prepared.and_then(|prepared| act(all, prepared)) {
            Ok(done) => Some(done),
            Err(error) => {
                *timings = Err(error);
                None
            }
        }
    }
}

impl Measuring<'_> {
    /// Measures as one worker of several.
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
        let mut cores = CoreWatch::start();
        for pass in 0..=self.passes[1] {
            if pace.leads {
                cores.look(n_cores(), true);
                let is_enough = pass > self.passes[0] && Instant::now() >= pace.deadline;
                pace.goes_on.store(!is_enough, Ordering::Relaxed);
            }
            pace.barrier.wait();
            if !pace.goes_on.load(Ordering::Relaxed) {
                break;
            }
            let counts = pass > 0;
            for number in 0..=self.samples.len() {
                let reference = prepared.as_mut().map(|(reference, ..)| reference);
                pace.together(
                    &mut timings,
                    || Ok(reference),
                    |all, reference| {
                        let timed = reference.map(ReferenceWork::time).transpose()?;
                        all.reference.extend(timed.filter(|_| counts));
                        Ok(())
                    },
                );
                let Some(sample) = self.samples.get(number) else { continue };
                let filler = prepared.as_ref().and_then(|(.., filler)| filler.as_ref());
                let ready = || ReadyParts::new(device, sample, filler);
                train(ready, number, counts, pace, &mut timings);
                if pace.leads {
                    (self.progress)(self.workers, number + 1, self.samples.len());
                }
            }
            let maps = prepared.as_mut().map_or(&mut [][..], |(_, maps, _)| &mut maps[..]);
            pace.together(
                &mut timings,
                || Ok(maps),
                |all, maps| {
                    let timed =
                        maps.iter_mut().map(MapUpdate::time).collect::<Result<Vec<_>, _>>()?;
                    all.add_calls(timed.into_iter().filter(|_| counts));
                    Ok(())
                },
            );
        }
        if let Ok(timings) = &mut timings {
            timings.core_share = cores.share();
        }
        timings
    }
}

/// Times a micro-batch and an update of sample `number`, if they count.
fn train<K: Layers>(
    ready: impl FnOnce() -> Result<ReadyParts<K>, PassError>,
    number: usize,
    counts: bool,
    pace: &Turns<'_>,
    timings: &mut Result<Timings, PassError>,
) {
    let passed = pace.together(timings, ready, |all, mut ready| {
        for (part, did) in ready.pass()? {
            if counts {
                all.add(number, part, did);
            }
        }
        Ok(ready)
    });
    // Stages are updated after the step sync: all at once.
    pace.together(
        timings,
        || Ok(passed),
        |all, passed| {
            for mut part in passed.into_iter().flat_map(|ready| ready.0) {
                let calls = part.stage.update(&part.grads, &mut part.moments)?;
                all.add_calls(calls.into_iter().filter(|_| counts));
            }
            Ok(())
        },
    );
}

/// A part of a model in the middle of a training.
struct ReadyPart<K: Layers> {
    part: ModelPart,
    stage: ReadyStage<K>,
    grads: Vec<K::Tensor>,
    moments: Moments<K>,
}

/// All parts of a model after a micro-batch, with moments that are in no cache: a training does all
/// the work of a step between two updates.
struct ReadyParts<K: Layers>(Vec<ReadyPart<K>>);

impl<K: Layers> ReadyParts<K> {
    fn new(
        device: &K,
        Sample { model, sequence, samples }: &Sample,
        filler: Option<&CacheFiller<K>>,
    ) -> Result<ReadyParts<K>, PassError> {
        let work = |part| SizedPart {
            model,
            part,
            n_blocks: N_BLOCKS,
            sequence: *sequence,
            samples: *samples,
            slices: 1,
            dropout: 0.0,
        };
        let moments = ModelPart::ALL.map(|part| Moments::new(device, &work(part)));
        filler.map_or(Ok(()), CacheFiller::fill)?;
        let parts = ModelPart::ALL.into_iter().zip(moments).map(|(part, moments)| {
            let stage = ReadyStage::new(device, &work(part), true)?;
            let grads = stage.zeros()?;
            Ok(ReadyPart { part, stage, grads, moments: moments? })
        });
        let mut ready = ReadyParts(parts.collect::<Result<_, PassError>>()?);
        // A micro-batch finds memory and caches as the previous one left them.
        ready.pass()?;
        Ok(ready)
    }

    /// Runs forward and backward of all parts, in the order of a model, so that the other parts
    /// evict a part's data from the caches as in training.
    fn pass(&mut self) -> Result<Vec<(ModelPart, Vec<HalfCalls>)>, PassError> {
        let ahead = self.0.iter().map(|ready| ready.stage.forward());
        let ahead = ahead.collect::<Result<Vec<_>, _>>()?;
        let mut did = Vec::new();
        for (ready, (forward, passed)) in self.0.iter_mut().zip(ahead).rev() {
            let [input, weight] = ready.stage.backward(passed, &mut ready.grads)?;
            did.push((ready.part, vec![forward, input, weight]));
        }
        Ok(did)
    }
}

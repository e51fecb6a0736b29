//! Times of stages and updates, from the times of layers.

use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use chimera_core::engine::Optimizer;
use chimera_core::model::{Cut, ModelConfig, Selection};
use chimera_core::stage::Param;
use chimera_device::{AnyKernels, Device, OpenDevice, Precision};

use super::law::Law;
use super::laws::{Laws, Time};
use super::maps;
use super::measure::reference_now;
use super::reference::ReferenceTime;
use super::stage_pass::{Half, ModelPart, SizedPart, calls};
use super::{Profile, Workers};

/// Times of layers for workers with a number of threads, some of which compute side by side.
#[derive(Clone, Debug)]
pub struct ProfiledTimes {
    measured: Arc<Both>,
    activation_bytes: u64,
    /// The share of the time in which other workers compute too.
    beside: f64,
    /// Number of spreads that are added to the measured times.
    n_spreads: f64,
    /// The factor by which everything takes longer than when it was measured.
    longer: f64,
    /// The reason why they may not hold here.
    doubt: Option<String>,
    /// The profile, if it was read from a file.
    file: Option<Arc<Path>>,
}

/// Times of one worker, and of workers side by side.
#[derive(Debug)]
struct Both {
    alone: Laws,
    beside: Laws,
    /// The workers of the latter measurement, and its time of the reference work.
    reference: (Workers, f64),
    /// Cached times by part of a model.
    known: Mutex<HashMap<String, Halves>>,
}

/// Times of each pass, with one worker and beside others.
type Halves = BTreeMap<Half, [Time; 2]>;

/// Seconds of an op for a whole micro-batch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OpTime {
    /// All slices together.
    pub seconds: f64,
    /// Extra time of its last slices over the mean one, as in [`SliceGrowth`](chimera_core::costs::SliceGrowth).
    pub growth: f64,
}

/// The times of a stage's ops.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StageTimes {
    /// A forward.
    pub forward: OpTime,
    /// The input half of a backward.
    pub input: OpTime,
    /// The weight half of a backward.
    pub weight: OpTime,
    /// Full recomputation.
    pub recompute: OpTime,
    /// Selective recomputation.
    pub restore: OpTime,
}

impl AddAssign for OpTime {
    fn add_assign(&mut self, other: OpTime) {
        self.seconds += other.seconds;
        self.growth += other.growth;
    }
}

/// Seconds of a message or a reduction between workers.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ExchangeTime {
    /// Seconds from beginning to end.
    pub takes: f64,
    /// Seconds of these in which the worker that begins it is occupied.
    pub occupies: f64,
}

/// Tokens of the largest micro-batch whose calls are counted one by one.
const MOST_COUNTED: usize = 1 << 22;

impl ProfiledTimes {
    /// Returns times of workers with `threads` each, where `workers` compute side by side, or as
    /// many as were measured, if fewer.
    ///
    /// # Errors
    /// If nothing was measured with this number of threads.
    pub fn of(
        profile: &Profile,
        workers: usize,
        threads: usize,
        precision: Precision,
    ) -> Result<ProfiledTimes> {
        let with_threads = || profile.measured.iter().filter(|m| m.threads == threads);
        let fewest = with_threads().min_by_key(|m| m.workers);
        // The effect of workers on each other is known only from measurements of several.
        let several = || with_threads().filter(|m| workers > 1 && m.workers > 1);
        let within = several().filter(|m| m.workers <= workers).max_by_key(|m| m.workers);
        let beyond = several().min_by_key(|m| m.workers);
        let (Some(alone), beside) = (fewest, within.or(beyond).or(fewest)) else {
            let mut known: Vec<usize> = profile.measured.iter().map(|m| m.threads).collect();
            known.sort_unstable();
            known.dedup();
            let known: Vec<String> = known.iter().map(usize::to_string).collect();
            bail!(
                "the profile has no times of {threads} thread(s) per worker, but of {}: choose --threads, or measure with \
                 `chimera profile --threads {threads}`",
                known.join(" and ")
            );
        };
        let beside = beside.unwrap_or(alone);
        let beside_workers = beside.workers;
        let measured = Both {
            alone: Laws::of(alone),
            beside: Laws::of(beside),
            reference: (Workers { workers: beside_workers, threads }, beside.reference_s),
            known: Mutex::default(),
        };
        Ok(ProfiledTimes {
            measured: Arc::new(measured),
            activation_bytes: precision.activation_bytes(profile.device == Device::CPU.to_string()),
            beside: if workers > 1 { 1.0 } else { 0.0 },
            n_spreads: 0.0,
            longer: 1.0,
            file: None,
            doubt: (workers > 1 && beside_workers == 1).then(|| {
                format!(
                    "the profile measured one worker of {threads} thread(s) alone, so the effect \
                     of {workers} on each other, and their messages, are left out: measure with \
                     `chimera profile --threads {threads}` on a machine with as many cores"
                )
            }),
        })
    }

    /// Returns times whose errors name the file of the profile.
    pub fn of_file(self, file: &Path) -> ProfiledTimes {
        ProfiledTimes { file: Some(file.into()), ..self }
    }

    /// Returns times that may not hold here for a further reason, if there is one.
    pub fn doubted(self, doubt: Option<String>) -> ProfiledTimes {
        let doubts: Vec<String> = [self.doubt, doubt].into_iter().flatten().collect();
        let doubt = (!doubts.is_empty()).then(|| doubts.join("; "));
        ProfiledTimes { doubt, ..self }
    }

    /// Returns why they may not hold here, if there is a reason.
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    /// Returns times for when other workers compute in this share of the time.
    pub fn with_others_busy(&self, beside: f64) -> ProfiledTimes {
        ProfiledTimes { beside: beside.clamp(0.0, 1.0), ..self.clone() }
    }

    /// Returns times that are longer than these by a number of spreads; shorter, if it is negative.
    pub fn spread_by(&self, n_spreads: f64) -> ProfiledTimes {
        ProfiledTimes { n_spreads: self.n_spreads + n_spreads, ..self.clone() }
    }

    /// Returns the time of the reference work in the profile, and measures it on this device now.
    ///
    /// # Errors
    /// If the device fails.
    pub fn reference<K: AnyKernels>(&self, device: &OpenDevice<K>) -> Result<ReferenceTime> {
        let (workers, profiled) = self.measured.reference;
        Ok(ReferenceTime { profiled, now: reference_now(device, workers)? })
    }

    /// Returns times of a machine on which everything takes `times` as long.
    pub fn longer(&self, times: f64) -> ProfiledTimes {
        ProfiledTimes { longer: self.longer * times, ..self.clone() }
    }

    /// Returns the times of a model's stage for this many samples, whose sequences are cut into slices.
    ///
    /// # Errors
    /// If the model calls a layer that the profile lacks.
    pub fn stage(
        &self,
        model: &ModelConfig,
        cut: &Cut,
        (sequence, samples, slices): (usize, usize, usize),
        dropout: f64,
    ) -> Result<StageTimes> {
        let mut times = StageTimes::default();
        let counts = [usize::from(cut.first), cut.blocks.len(), usize::from(cut.last)];
        for (part, count) in ModelPart::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0)
        {
            let work = SizedPart { model, part, n_blocks: 1, sequence, samples, slices, dropout };
            let halves = self.part(&work)?;
            let of_n = |n: usize, half| {
                halves.get(&half).map_or(OpTime::default(), |both| self.op_time(n, both))
            };
            let of = |half| of_n(count, half);
            times.forward += of(Half::Forward);
            times.input += of(Half::Input);
            times.weight += of(Half::Weight);
            times.recompute += of(Half::Recompute);
            times.restore += match cut.selection {
                Selection::InputsOf(_) if part == ModelPart::Block => {
                    of_n(cut.selection.n_inputs(count), Half::Recompute)
                }
                _ => of(Half::Restore),
            };
        }
        Ok(times)
    }

    /// Returns the time of an optimizer's update of some parameters, sharded over `share` replicas.
    /// An optimizer that was not [measured](Self::has_update) is taken to be as fast as AdamW. One
    /// that multiplies matrices updates linear maps as wholes, and the rest as AdamW does.
    ///
    /// # Errors
    /// If the profile has no times of either.
    pub fn update(&self, optimizer: &Optimizer, params: &[&Param], share: usize) -> Result<f64> {
        let (rule, multiplies) = match (self.has_update(optimizer), optimizer.needs_products()) {
            (true, false) => (optimizer.name(), false),
            (is_measured, _) => ("adamw", is_measured),
        };
        let is_map = |param: &&Param| multiplies && !param.linear_maps.is_empty();
        let (maps, rest): (Vec<&Param>, Vec<&Param>) = params.iter().copied().partition(is_map);
        let n_elements: usize = rest.iter().map(|param| param.n_elements()).sum();
        let extents = maps.iter().flat_map(|param| param.map_extents()).map(maps::extents);
        let maps = extents.map(|extents| self.layer_of(optimizer.name(), &extents));
        let maps = maps.sum::<Result<f64>>()? / share as f64;
        Ok(maps + self.layer(rule, n_elements / share)?)
    }

    /// Returns true if an optimizer's update was measured. Those of K-FAC and of a caller's own
    /// optimizer never are; Muon's is not on a device without matrix products for optimizers.
    pub fn has_update(&self, optimizer: &Optimizer) -> bool {
        self.measured.alone.layers.contains_key(optimizer.name())
    }

    /// Returns the time of a message of `bytes` between two workers that are threads; zero if it was not measured.
    pub fn message(&self, bytes: usize) -> ExchangeTime {
        let beside = &self.measured.beside;
        let [takes, occupies] = match &beside.messages {
            Some(laws) => laws.each_ref().map(|law| law.at(&[bytes])),
            None => [0.0; 2],
        };
        self.exchange(takes, occupies, beside.exchange_spreads[0])
    }

    /// Returns the time of a reduction of `elements` over workers that are threads; `None` if it was not measured.
    pub fn reduction(&self, replicas: usize, elements: usize) -> Option<ExchangeTime> {
        let beside = &self.measured.beside;
        let each = |law: &Law| law.at(&[replicas, elements]) * elements as f64;
        let [takes, occupies] = beside.reductions.as_ref()?.each_ref().map(each);
        Some(self.exchange(takes, occupies, beside.exchange_spreads[1]))
    }

    /// Returns the time to move `bytes` of activations out of the device's memory, or back; `None`
    /// if it was not measured.
    pub fn transfer(&self, bytes: usize) -> Option<f64> {
        let Both { alone, beside, .. } = &*self.measured;
        let time = |laws: &Laws| {
            let (law, spread) = laws.moves.as_ref()?;
            let seconds = law.at(&[bytes]) * bytes as f64;
            Some(Time { seconds, growth: 0.0, spread: seconds * spread })
        };
        Some(self.blend(&[time(alone)?, time(beside)?]))
    }

    /// Returns the time of the step sync of several workers.
    pub fn sync(&self) -> f64 {
        self.longer * self.measured.beside.sync_s
    }

    fn exchange(&self, takes: f64, occupies: f64, spread: f64) -> ExchangeTime {
        let longer = self.longer * (1.0 + self.n_spreads * spread).max(0.0);
        ExchangeTime { takes: takes * longer, occupies: occupies.min(takes) * longer }
    }

    /// Returns the time of a function of one extent.
    pub(crate) fn layer(&self, layer: &str, extent: usize) -> Result<f64> {
        if extent == 0 { Ok(0.0) } else { self.layer_of(layer, &[extent]) }
    }

    fn layer_of(&self, layer: &str, extents: &[usize]) -> Result<f64> {
        let Both { alone, beside, .. } = &*self.measured;
        Ok(self.blend(&[self.time(alone, layer, extents)?, self.time(beside, layer, extents)?]))
    }

    /// Returns the time of a layer by some laws of this profile.
    fn time(&self, laws: &Laws, layer: &str, extents: &[usize]) -> Result<Time> {
        laws.layer(layer, extents).with_context(|| {
            let file = self.file.as_ref().map(|file| format!(" {}", file.display()));
            format!(
                "the profile{} has no times of `{layer}`: measure the model too, with --model or --preset",
                file.unwrap_or_default()
            )
        })
    }

    fn blend(&self, [alone, beside]: &[Time; 2]) -> f64 {
        let at = |time: &Time| (time.seconds + self.n_spreads * time.spread).max(0.0);
        self.longer * (at(alone) + self.beside * (at(beside) - at(alone)))
    }

    /// Returns the time of `n` layers.
    fn op_time(&self, n: usize, both: &[Time; 2]) -> OpTime {
        let n = n as f64;
        let [alone, beside] = both.each_ref().map(|time| time.growth);
        let growth = self.longer * (alone + self.beside * (beside - alone));
        OpTime { seconds: n * self.blend(both), growth: n * growth }
    }

    fn part(&self, work: &SizedPart<'_>) -> Result<Halves> {
        // All layers are equal, so stages differ only in their number of layers.
        let model = ModelConfig { layers: 1, ..work.model.clone() };
        let key = format!(
            "{model:?} {:?} {} {} {} {}",
            work.part, work.sequence, work.samples, work.slices, work.dropout
        );
        let known = || self.measured.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(halves) = known().get(&key) {
            return Ok(halves.clone());
        }
        // Very large micro-batches are scaled from fewer samples, to avoid a list of all their tokens.
        let samples = work.samples.clamp(1, (MOST_COUNTED / work.sequence.max(1)).max(1));
        let times = work.samples as f64 / samples as f64;
        let mut halves = Halves::new();
        let n = work.slices as f64;
        // The slope of the least-squares line through the times of slices.
        let grows =
            |slice: usize| (2.0 * slice as f64 + 1.0 - n) * 3.0 * n / (n * n - 1.0).max(1.0);
        for did in calls(&SizedPart { samples, ..*work }, self.activation_bytes)? {
            let Both { alone, beside, .. } = &*self.measured;
            let both = halves.entry(did.half).or_insert([Time::default(); 2]);
            for (sum, laws) in both.iter_mut().zip([alone, beside]) {
                let overhead = laws.overhead(work, did.half);
                for call in &did.calls {
                    let time = self.time(laws, call.layer, &call.extents)?;
                    let seconds = times * overhead * time.seconds;
                    sum.seconds += seconds;
                    sum.growth += seconds * grows(did.slice);
                    sum.spread += times * overhead * time.spread;
                }
            }
        }
        known().insert(key, halves.clone());
        Ok(halves)
    }
}

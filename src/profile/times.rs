//! What stages and updates take, from the times of layers.

use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use chimera_core::engine::Optimizer;
use chimera_core::model::{Cut, ModelConfig, Selection};
use chimera_core::stage::Param;

use super::law::{Law, median};
use super::maps;
use super::measure::reference_now;
use super::reference::ReferenceTime;
use super::stage_pass::{Half, ModelPart, SizedPart, calls};
use super::{Measurements, MessageTime, Profile, ReductionTime, Workers};
use crate::device::{Device, OpenDevice, Precision};

/// Times of layers, of workers with so many threads of which some compute side by side.
#[derive(Clone, Debug)]
pub struct ProfiledTimes {
    measured: Arc<Both>,
    activation_bytes: u64,
    /// The part of the time in which other workers compute too.
    beside: f64,
    /// How many spreads times are longer than their medians.
    n_spreads: f64,
    /// How many times as long everything takes as when it was measured.
    longer: f64,
    /// Why they may not hold here.
    doubt: Option<String>,
    /// The profile, if it was read from a file.
    file: Option<Arc<Path>>,
}

/// Of a worker alone, and beside others.
#[derive(Debug)]
struct Both {
    alone: Laws,
    beside: Laws,
    /// With how many workers the latter was measured, and what the reference work took.
    reference: (Workers, f64),
    /// By part of a model: what is known already.
    known: Mutex<HashMap<String, Halves>>,
}

/// Of each half, alone and beside others.
type Halves = BTreeMap<Half, [Time; 2]>;

#[derive(Clone, Copy, Debug, Default)]
struct Time {
    seconds: f64,
    /// As an [`OpTime`]'s.
    growth: f64,
    /// In seconds.
    spread: f64,
}

/// What an op takes of a whole micro-batch, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OpTime {
    /// All of it.
    pub seconds: f64,
    /// What its last slices take beside the mean one, as [`SliceGrowth`](chimera_core::costs::SliceGrowth) counts it.
    pub growth: f64,
}

/// What the ops of a stage take.
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

/// What was measured with so many workers.
#[derive(Debug)]
struct Laws {
    /// By layer: seconds of a unit of work, and the usual spread.
    layers: HashMap<String, (Law, f64)>,
    /// By part and half: time in all, in parts of that in layers, by tokens and width.
    overheads: BTreeMap<(ModelPart, Half), Law>,
    /// Seconds of messages by bytes, and of the sender; none where there was one worker.
    messages: Option<[Law; 2]>,
    /// Seconds of an element of a reduction, by replicas and elements, and of its start.
    reductions: Option<[Law; 2]>,
    /// The usual spread of messages and of reductions.
    exchange_spreads: [f64; 2],
    sync_s: f64,
    /// Seconds of a byte that is moved out of memory or back, and the usual spread.
    moves: Option<(Law, f64)>,
}

/// What a message or a reduction between workers takes, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ExchangeTime {
    /// From its beginning to its end.
    pub takes: f64,
    /// The part of it in which the worker that begins it can do nothing else.
    pub occupies: f64,
}

impl Laws {
    fn of(measured: &Measurements) -> Laws {
        let mut by_layer: HashMap<String, (Vec<(Vec<usize>, f64)>, Vec<f64>)> = HashMap::new();
        for layer in &measured.layers {
            let (points, spreads) = by_layer.entry(layer.layer.clone()).or_default();
            points.push((layer.extents.clone(), layer.seconds / work(&layer.extents)));
            spreads.push(layer.spread);
        }
        let law = |(layer, (points, mut spreads)): (String, (Vec<_>, Vec<f64>))| {
            Some((layer, (Law::through(points)?, median(&mut spreads))))
        };
        let mut by_part: BTreeMap<(ModelPart, Half), Vec<(Vec<usize>, f64)>> = BTreeMap::new();
        for part in &measured.parts {
            let extents = vec![part.sequence * part.samples, part.hidden];
            let overhead = 1.0 / part.in_layers.max(0.1);
            by_part.entry((part.part, part.op)).or_default().push((extents, overhead));
        }
        let overheads =
            by_part.into_iter().filter_map(|(key, points)| Some((key, Law::through(points)?)));
        let Measurements { messages, reductions, sync_s, moves, .. } = measured;
        let of_messages = |seconds: fn(&MessageTime) -> f64| {
            Law::through(messages.iter().map(|m| (vec![m.bytes], seconds(m))))
        };
        let of_reductions = |seconds: fn(&ReductionTime) -> f64| {
            let each = |r: &ReductionTime| {
                (vec![r.replicas, r.elements], seconds(r) / work(&[r.elements]))
            };
            Law::through(reductions.iter().map(each))
        };
        let of_moves =
            Law::through(moves.iter().map(|m| (vec![m.bytes], m.seconds / work(&[m.bytes]))));
        let both = |[takes, occupies]: [Option<Law>; 2]| Some([takes?, occupies?]);
        Laws {
            layers: by_layer.into_iter().filter_map(law).collect(),
            overheads: overheads.collect(),
            messages: both([of_messages(|m| m.seconds), of_messages(|m| m.occupies)]),
            reductions: both([of_reductions(|r| r.seconds), of_reductions(|r| r.occupies)]),
            exchange_spreads: [
                median(&mut messages.iter().map(|m| m.spread).collect::<Vec<_>>()),
                median(&mut reductions.iter().map(|r| r.spread).collect::<Vec<_>>()),
            ],
            sync_s: *sync_s,
            moves: of_moves
                .map(|law| (law, median(&mut moves.iter().map(|m| m.spread).collect::<Vec<_>>()))),
        }
    }

    /// What a layer takes, or `None` if that was not measured.
    fn layer(&self, layer: &str, extents: &[usize]) -> Option<Time> {
        let (law, spread) = self.layers.get(layer)?;
        let seconds = law.at(extents) * work(extents);
        Some(Time { seconds, growth: 0.0, spread: seconds * spread })
    }

    /// What a half takes beside its layers was measured of the halves that calls are the same of.
    fn overhead(&self, work: &SizedPart<'_>, half: Half) -> f64 {
        let like = match half {
            Half::Recompute | Half::Restore => Half::Forward,
            half => half,
        };
        let extents = [work.sequence * work.samples / work.slices.max(1), work.model.hidden];
        self.overheads.get(&(work.part, like)).map_or(1.0, |law| law.at(&extents))
    }
}

/// Tokens of a micro-batch whose calls are counted one by one.
const MOST_COUNTED: usize = 1 << 22;

/// To which the time of a large call is proportional.
fn work(extents: &[usize]) -> f64 {
    extents.iter().map(|extent| (*extent).max(1) as f64).product()
}

impl ProfiledTimes {
    /// Times of workers with `threads` each, of which `workers` compute side by side, or as many as were measured.
    ///
    /// # Errors
    /// If nothing was measured with so many threads.
    pub fn of(
        profile: &Profile,
        workers: usize,
        threads: usize,
        precision: Precision,
    ) -> Result<ProfiledTimes> {
        let with_threads = || profile.measured.iter().filter(|m| m.threads == threads);
        let fewest = with_threads().min_by_key(|m| m.workers);
        // What workers do to each other is known of several alone.
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
                    "the profile measured one worker of {threads} thread(s) alone, so what {workers} take of each other, and \
                     their messages, are left out: measure with `chimera profile --threads {threads}` on a machine with as many cores"
                )
            }),
        })
    }

    /// Times whose errors name the file of the profile.
    pub fn of_file(self, file: &Path) -> ProfiledTimes {
        ProfiledTimes { file: Some(file.into()), ..self }
    }

    /// Times that may not hold here, for a further reason if there is one.
    pub fn doubted(self, doubt: Option<String>) -> ProfiledTimes {
        let doubts: Vec<String> = [self.doubt, doubt].into_iter().flatten().collect();
        let doubt = (!doubts.is_empty()).then(|| doubts.join("; "));
        ProfiledTimes { doubt, ..self }
    }

    /// Why they may not hold here, if that is so.
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    /// Times where other workers compute in this part of the time.
    pub fn with_others_busy(&self, beside: f64) -> ProfiledTimes {
        ProfiledTimes { beside: beside.clamp(0.0, 1.0), ..self.clone() }
    }

    /// Times that are so many spreads longer than these; shorter, if negative.
    pub fn spread_by(&self, n_spreads: f64) -> ProfiledTimes {
        ProfiledTimes { n_spreads: self.n_spreads + n_spreads, ..self.clone() }
    }

    /// What the reference work took when they were measured, and takes on this device now.
    ///
    /// # Errors
    /// If the device fails.
    pub fn reference(&self, device: &OpenDevice) -> Result<ReferenceTime> {
        let (workers, profiled) = self.measured.reference;
        Ok(ReferenceTime { profiled, now: reference_now(device, workers)? })
    }

    /// Times of a machine on which everything takes so many times as long.
    pub fn longer(&self, times: f64) -> ProfiledTimes {
        ProfiledTimes { longer: self.longer * times, ..self.clone() }
    }

    /// What a stage takes of a model for so many samples, whose sequences are cut into slices.
    ///
    /// # Errors
    /// If the model calls a layer of which the profile has no times.
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

    /// What an optimizer's update of some parameters takes, which so many replicas share; what AdamW's takes, where that was
    /// not [measured](Self::has_update). An optimizer that multiplies matrices takes linear maps as wholes, and the rest as
    /// AdamW does.
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

    /// Whether an optimizer's update was measured: K-FAC's and a caller's own are not, and none that multiplies matrices on a
    /// device that does not for optimizers.
    pub fn has_update(&self, optimizer: &Optimizer) -> bool {
        self.measured.alone.layers.contains_key(optimizer.name())
    }

    /// What a message of so many bytes takes between two workers that are threads. Nothing, if that was not measured.
    pub fn message(&self, bytes: usize) -> ExchangeTime {
        let beside = &self.measured.beside;
        let [takes, occupies] = match &beside.messages {
            Some(laws) => laws.each_ref().map(|law| law.at(&[bytes])),
            None => [0.0; 2],
        };
        self.exchange(takes, occupies, beside.exchange_spreads[0])
    }

    /// What a reduction of so many elements takes over workers that are threads; `None` if that was not measured.
    pub fn reduction(&self, replicas: usize, elements: usize) -> Option<ExchangeTime> {
        let beside = &self.measured.beside;
        let each = |law: &Law| law.at(&[replicas, elements]) * elements as f64;
        let [takes, occupies] = beside.reductions.as_ref()?.each_ref().map(each);
        Some(self.exchange(takes, occupies, beside.exchange_spreads[1]))
    }

    /// What a move of so many bytes of activations takes out of the memory of the device, or back; `None` if that was not
    /// measured.
    pub fn transfer(&self, bytes: usize) -> Option<f64> {
        let Both { alone, beside, .. } = &*self.measured;
        let time = |laws: &Laws| {
            let (law, spread) = laws.moves.as_ref()?;
            let seconds = law.at(&[bytes]) * bytes as f64;
            Some(Time { seconds, growth: 0.0, spread: seconds * spread })
        };
        Some(self.blend(&[time(alone)?, time(beside)?]))
    }

    /// What the step sync takes of several workers.
    pub fn sync(&self) -> f64 {
        self.longer * self.measured.beside.sync_s
    }

    fn exchange(&self, takes: f64, occupies: f64, spread: f64) -> ExchangeTime {
        let longer = self.longer * (1.0 + self.n_spreads * spread).max(0.0);
        ExchangeTime { takes: takes * longer, occupies: occupies.min(takes) * longer }
    }

    /// What a function of one extent takes.
    pub(crate) fn layer(&self, layer: &str, extent: usize) -> Result<f64> {
        if extent == 0 { Ok(0.0) } else { self.layer_of(layer, &[extent]) }
    }

    fn layer_of(&self, layer: &str, extents: &[usize]) -> Result<f64> {
        let Both { alone, beside, .. } = &*self.measured;
        Ok(self.blend(&[self.time(alone, layer, extents)?, self.time(beside, layer, extents)?]))
    }

    /// What a layer takes by some laws of this profile.
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

    /// Of so many layers.
    fn op_time(&self, n: usize, both: &[Time; 2]) -> OpTime {
        let n = n as f64;
        let [alone, beside] = both.each_ref().map(|time| time.growth);
        let growth = self.longer * (alone + self.beside * (beside - alone));
        OpTime { seconds: n * self.blend(both), growth: n * growth }
    }

    fn part(&self, work: &SizedPart<'_>) -> Result<Halves> {
        // Layers are alike, and so are stages that differ in how many they have.
        let model = ModelConfig { layers: 1, ..work.model.clone() };
        let key = format!(
            "{model:?} {:?} {} {} {} {}",
            work.part, work.sequence, work.samples, work.slices, work.dropout
        );
        let known = || self.measured.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(halves) = known().get(&key) {
            return Ok(halves.clone());
        }
        // Calls of very large micro-batches are those of fewer samples, on more: that needs no list of all their tokens.
        let samples = work.samples.clamp(1, (MOST_COUNTED / work.sequence.max(1)).max(1));
        let times = work.samples as f64 / samples as f64;
        let mut halves = Halves::new();
        let n = work.slices as f64;
        // By the line through the times of slices that is nearest to them.
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

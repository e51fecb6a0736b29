//! A profile: the measured times of a machine's devices for the layers of the models here. The time of any stage
//! follows from it.
//!
//! The time of a stage is the sum of its calls of layers. Running the stage on a device that computes nothing shows
//! these calls (`stage_pass`). So a profile holds times of layers by their extents, measured within whole stages
//! (`measure`). Between extents they are interpolated (`law`), so one profile also predicts models of other sizes.

mod busy;
mod cache_filler;
mod exchange;
mod file;
mod idle_stage;
mod law;
mod laws;
mod maps;
mod measure;
mod moves;
mod reference;
mod samples;
mod stage_pass;
mod times;
mod timings;

use serde::{Deserialize, Serialize};

pub use measure::{LEAST_ROUNDS, MeasureProgress, measure};
pub use reference::ReferenceTime;
pub use samples::{Sample, samples};
use stage_pass::{Half, ModelPart};
pub use times::{ExchangeTime, OpTime, ProfiledTimes, StageTimes};

/// The number of concurrent workers, and of threads of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workers {
    /// Workers that compute side by side.
    pub workers: usize,
    /// Threads of each.
    pub threads: usize,
}

/// Measurements of a machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The format of the file.
    format: u32,
    /// Version of the program, and whether it has debug assertions.
    pub build: String,
    /// Date of the measurement.
    pub date: String,
    /// The processor and its cores.
    pub machine: String,
    /// Description of the device.
    pub device: String,
    /// Precision of activations.
    pub precision: String,
    /// Measurements by number of concurrent workers, and of their threads.
    pub measured: Vec<Measurements>,
}

/// Measurements with a number of workers that do the same work at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurements {
    /// Workers that compute side by side.
    pub workers: usize,
    /// Threads of each.
    pub threads: usize,
    /// Times by layer and extents.
    pub layers: Vec<LayerTime>,
    /// Times by part of a model and pass of a stage.
    pub parts: Vec<PartTime>,
    /// Messages between these workers, if they are several threads.
    pub messages: Vec<MessageTime>,
    /// Gradient reductions over them.
    pub reductions: Vec<ReductionTime>,
    /// Seconds of the step sync, after the last worker has arrived at it.
    pub sync_s: f64,
    /// Seconds of the reference work, a fixed piece of work that measures the speed of the machine.
    pub reference_s: f64,
    /// The longest time in the quickest quarter of the repetitions of the reference work. It is
    /// much less than `reference_s` if other programs used the machine.
    #[serde(default)]
    pub reference_quick_s: Option<f64>,
    /// The share of its cores' time that the process got, if the system counts it.
    #[serde(default)]
    pub core_share: Option<f64>,
    /// Moves of activations out of the device's memory, or back.
    pub moves: Vec<MoveTime>,
}

/// The time to move activations out of a device's memory or back: half of the time for both.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveTime {
    /// Bytes of the activations.
    pub bytes: usize,
    /// Moves that were timed.
    pub count: usize,
    /// Median seconds, in which the worker does nothing else.
    pub seconds: f64,
    /// Half of the distance between the quartiles, relative to the median.
    pub spread: f64,
}

/// The time of a message between two workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageTime {
    /// Bytes of the message.
    pub bytes: usize,
    /// Messages that were timed.
    pub count: usize,
    /// Median seconds from the end of the op that makes it until a worker that waits for it goes on.
    pub seconds: f64,
    /// Half of the distance between the quartiles, relative to the median.
    pub spread: f64,
    /// Seconds for which it occupies the worker that sends it.
    pub occupies: f64,
}

/// The time of a gradient reduction.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReductionTime {
    /// Workers that take part.
    pub replicas: usize,
    /// Elements of the gradients.
    pub elements: usize,
    /// Reductions that were timed.
    pub count: usize,
    /// Median seconds from the start of the last worker to the end of the last.
    pub seconds: f64,
    /// Half of the distance between the quartiles, relative to the median.
    pub spread: f64,
    /// Seconds for which starting a reduction occupies a worker.
    pub occupies: f64,
}

/// The time of a call of a layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTime {
    /// The function of `Layers` or `Device`, and its variant.
    pub layer: String,
    /// The extents of its tensors.
    pub extents: Vec<usize>,
    /// Calls that were timed.
    pub count: usize,
    /// Mean seconds of the calls that took at most twice the median.
    pub seconds: f64,
    /// Half of the distance between the quartiles, relative to that mean.
    pub spread: f64,
}

/// The total time of a pass of a part of a model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartTime {
    /// Architecture.
    pub model: String,
    /// Features per token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Tokens per sample.
    pub sequence: usize,
    /// Samples of a micro-batch.
    pub samples: usize,
    part: ModelPart,
    op: Half,
    /// Mean seconds of the passes that took at most twice the median.
    pub seconds: f64,
    /// Half of the distance between the quartiles, relative to that mean.
    pub spread: f64,
    /// The fraction of that time that is spent in layers.
    pub in_layers: f64,
}

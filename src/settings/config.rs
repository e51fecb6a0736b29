//! Resolved settings.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use chimera_core::engine::{LrSchedule, NonFinite, Optimizer, Patience};
use chimera_core::lower::{Hoist, Recompute, Sync};
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Scaling;
use serde::{Deserialize, Deserializer};
use toml::Value;

use super::SettingsError;
use crate::auto::Where;
use crate::data::missing_ids;
use crate::device::Precision;
use crate::launch::Transport;

/// The settings of a run: every key has its value, and each value is in its range.
///
/// What values mean together (whether `heads` divides `hidden`, whether a schedule has such a shape)
/// is for the model and the schedule to say.
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Text or token files, in order; none means the built-in text.
    pub data: Vec<PathBuf>,
    /// Name of the schedule, or an alias, or the file of a timetable.
    pub schedule: String,
    /// Workers per pipeline group.
    pub depth: usize,
    /// Pipeline groups.
    pub width: usize,
    /// Pipes of a bidirectional schedule.
    pub pipes: usize,
    /// Stages per worker of an interleaved schedule.
    pub chunks: usize,
    /// How a schedule covers more micro-batches than workers.
    #[serde(deserialize_with = "by_name")]
    pub scaling: Scaling,
    /// Forwards, and then backwards, in turn of 1F1B.
    pub in_turn: u32,
    /// Waves of Hanayo.
    pub waves: usize,
    /// The most micro-batches on their way in each direction of MixPipe; `None` for its own choice.
    pub in_flight: Option<u32>,
    /// What forwards keep.
    #[serde(deserialize_with = "by_name")]
    pub recompute: Recompute,
    /// Where recomputations stand.
    #[serde(deserialize_with = "by_name")]
    pub hoist: Hoist,
    /// Whether backwards are split.
    pub split_backward: bool,
    /// The most micro-batches whose residuals a worker may hold; `None` for as many as the schedule does.
    pub memory_cap: Option<f64>,
    /// Where `auto` searches.
    #[serde(deserialize_with = "by_name")]
    pub placement: Where,
    /// Seconds that `auto` may take.
    pub search_time: f64,
    /// Steps between the flushes of an asynchronous schedule.
    pub window: u32,
    /// Micro-batches per group and step.
    pub micro_batches: usize,
    /// Samples per micro-batch.
    pub micro_batch_size: usize,
    /// What the layers are.
    #[serde(rename = "model", deserialize_with = "by_name")]
    pub architecture: Architecture,
    /// Name of the preset below the sizes of the model.
    pub preset: String,
    /// Folder of the model to begin with; `None` for weights drawn at random.
    pub init: Option<PathBuf>,
    /// Transformer layers.
    pub layers: usize,
    /// Features per token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Tokens per sample.
    pub context: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Whether the head is the token embedding.
    pub tied: bool,
    /// Optimizer steps.
    pub steps: u64,
    /// What makes a step of a gradient.
    #[serde(deserialize_with = "by_name")]
    pub optimizer: Optimizer,
    /// Peak learning rate.
    pub lr: f64,
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// How the learning rate falls.
    #[serde(deserialize_with = "by_name")]
    pub lr_schedule: LrSchedule,
    /// The learning rate that it falls to.
    pub min_lr: f64,
    /// Decay of the first moment of AdamW and LAMB.
    pub beta1: f64,
    /// Decay of their second moment.
    pub beta2: f64,
    /// What they add to the root of the second moment.
    pub eps: f64,
    /// Momentum of SGD.
    pub momentum: f64,
    /// Probability of being dropped.
    pub dropout: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 for no clipping.
    pub clip: f64,
    /// Whether all workers agree that loss and gradients are finite before a step.
    pub check_finite: bool,
    /// What becomes of a step that is not.
    #[serde(deserialize_with = "by_name")]
    pub non_finite: NonFinite,
    /// Steps from one comparison of replicas to the next; 0 for none.
    pub check_replicas: u64,
    /// Key of all random draws.
    pub seed: u64,
    /// When gradients are summed over replicas.
    #[serde(deserialize_with = "by_name")]
    pub sync: Sync,
    /// Whether each tensor is updated by one of its replicas alone.
    pub shard_optimizer: bool,
    /// Whether MPI's own all-reduce sums gradients.
    pub mpi_allreduce: bool,
    /// Where to compute, as [`Device::list`](crate::device::Device::list) reads it.
    pub device: String,
    /// Numbers of activations.
    #[serde(deserialize_with = "by_name")]
    pub precision: Precision,
    /// How workers reach each other.
    #[serde(deserialize_with = "by_name")]
    pub transport: Transport,
    /// CPU threads per worker.
    pub threads: usize,
    /// Seconds without a message after which a worker gives up.
    pub timeout: f64,
    /// The same until the first step is done, if it is longer.
    pub start_timeout: f64,
    /// Folder of the run; `None` for a fresh one.
    pub out: Option<PathBuf>,
    /// File of the metrics; `None` for one in the folder of the run.
    pub metrics: Option<PathBuf>,
    /// File of the trace, if there is to be one.
    pub trace: Option<PathBuf>,
    /// The steps that it shows.
    #[serde(deserialize_with = "by_name")]
    pub trace_steps: StepRange,
    /// Steps from one evaluation to the next; 0 for none before the end.
    pub eval_every: u64,
    /// Floating-point operations per second of a worker's device; `None` for what is measured.
    pub peak_flops: Option<f64>,
    /// Folder for a log of each rank.
    pub log: Option<PathBuf>,
    /// Folder for event files of TensorBoard.
    pub tensorboard: Option<PathBuf>,
    /// Where Prometheus finds the last step, on this machine.
    pub prometheus: Option<SocketAddr>,
    /// Folder for the trained weights, if they are to be saved.
    pub save: Option<PathBuf>,
    /// Steps between checkpoints; 0 for one only where a run is stopped.
    pub save_every: u64,
    /// Checkpoints that are kept.
    pub keep: usize,
    /// `auto`, or the folder of the checkpoint to go on from; `None` to begin at the start.
    pub resume: Option<String>,
    /// What was said, and where.
    #[serde(skip)]
    pub(super) entries: Entries,
}

impl Config {
    /// The value of `key` and where it came from; `None` if nothing was said and nothing is meant.
    pub fn value(&self, key: &str) -> Option<(&Value, &Origin)> {
        self.entries.get(key).map(|(value, origin)| (value, origin))
    }

    /// Refuses the vocabulary of a preset where that of the data goes before it, but the data is not here.
    ///
    /// # Errors
    /// [`SettingsError`], which names the data.
    pub fn must_know_vocab(&self) -> Result<(), SettingsError> {
        let of_preset = |(_, origin): &(_, &Origin)| matches!(origin, Origin::Preset(_));
        let is_open = self.value("vocab").as_ref().is_some_and(of_preset);
        let Some(path) = missing_ids(&self.data).filter(|_| is_open) else { return Ok(()) };
        let place = self.value("data").map(|(_, origin)| origin.to_string()).unwrap_or_default();
        let message = format!(
            "the vocabulary follows from {}, which is not here: say `vocab`, or run where the data is",
            path.display()
        );
        Err(SettingsError { place, message })
    }

    /// How long ranks wait for each other.
    pub fn patience(&self) -> Patience {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
        let later = seconds(self.timeout);
        Patience { first_step: later.max(seconds(self.start_timeout)), later }
    }

    /// The model.
    pub fn model(&self) -> ModelConfig {
        ModelConfig {
            architecture: self.architecture,
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            context: self.context,
            vocab: self.vocab,
            tied: self.tied,
        }
    }
}

/// Some steps, at least one, written `A..B`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepRange(pub Range<u64>);

impl FromStr for StepRange {
    type Err = String;

    fn from_str(text: &str) -> Result<StepRange, String> {
        let ends = text.split_once("..").map(|(a, b)| (a.trim().parse(), b.trim().parse()));
        match ends {
            Some((Ok(from), Ok(to))) if from < to => Ok(StepRange(from..to)),
            _ => Err(format!("{text} is no range of steps such as 1..11")),
        }
    }
}

/// Value and origin by key.
pub(super) type Entries = BTreeMap<String, (Value, Origin)>;

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Nothing else was said.
    Default,
    /// The preset of this name.
    Preset(String),
    /// A file, and the line of the key.
    File(PathBuf, usize),
    /// An option of the command.
    CommandLine,
    /// The timetable in this file.
    Timetable(PathBuf),
    /// The model in this folder.
    Model(PathBuf),
    /// The checkpoint in this folder.
    Checkpoint(PathBuf),
    /// The description of this data file.
    Data(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::Preset(name) => write!(f, "preset {name}"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::CommandLine => write!(f, "command line"),
            Origin::Timetable(path) => write!(f, "timetable {}", path.display()),
            Origin::Model(dir) => write!(f, "model {}", dir.display()),
            Origin::Checkpoint(dir) => write!(f, "checkpoint {}", dir.display()),
            Origin::Data(path) => write!(f, "data {}", path.display()),
        }
    }
}

fn by_name<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: fmt::Display>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

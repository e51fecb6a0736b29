//! The settings of a training run: one list of keys for the command line and for TOML files.
//!
//! Layers, each overriding those before it: defaults, the preset, the files that the configuration
//! file `extends`, the file itself, the command line. [`Layers::resolve`] merges and checks them and
//! remembers where each value came from; `chimera config show` prints that.

mod check;
mod config;
mod file;
mod resolve;
mod show;

use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Value;

pub(crate) use check::near;
pub use check::nearest;
pub use config::{Config, Origin, StepRange};

/// Why settings cannot be used (exit code 2).
#[derive(thiserror::Error, Clone, PartialEq, Debug)]
#[error("{place}: {message}")]
pub struct SettingsError {
    /// `file.toml:3`, or where else the value came from.
    pub place: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// The command-line arguments of everything that trains.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(about = None, long_about = None)]
#[command(mut_args(|arg| arg.allow_negative_numbers(true)))]
pub struct Layers {
    /// TOML file with the same keys as the options below; it may say `extends = "other.toml"`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What the command line says itself.
    #[command(flatten)]
    pub settings: Settings,
}

/// What one layer says; `None` leaves a key to the layers below.
///
/// The field names are the keys: `micro_batches` is `--micro-batches` and `micro-batches = 8`.
/// Paths are relative to the current directory, in files too.
#[derive(clap::Args, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Text files (bytes are tokens), or `.bin` files of u16 token ids, `.u32.bin` of u32 ids, as
    /// `chimera prepare` makes them; given again, it adds files
    /// [default: the built-in text, the New Testament in English]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub data: Option<Vec<PathBuf>>,
    /// Pipeline schedule: a name from `chimera schedule list` (`auto` searches), or a timetable in a `.csv` or `.json` file,
    /// from which `depth` and `micro-batches` follow [default: chimera]
    #[arg(long, value_name = "NAME|FILE")]
    pub schedule: Option<String>,
    /// Workers per pipeline group, D; 1 trains without a pipeline [default: 4]
    #[arg(long, value_name = "D")]
    pub depth: Option<i64>,
    /// Pipeline groups, W (data parallelism) [default: 1]
    #[arg(long, value_name = "W")]
    pub width: Option<i64>,
    /// Pipes of a bidirectional schedule, 2f [default: 2]
    #[arg(long, value_name = "2f")]
    pub pipes: Option<i64>,
    /// Stages per worker of an interleaved schedule, v [default: 2]
    #[arg(long, value_name = "v")]
    pub chunks: Option<i64>,
    /// Chimera with more micro-batches than workers: direct, doubling or halving [default: direct]
    #[arg(long, value_name = "MODE")]
    pub scaling: Option<String>,
    /// Forwards, and then backwards, in turn of 1F1B, k (kFkB) [default: 1]
    #[arg(long, value_name = "k")]
    pub in_turn: Option<i64>,
    /// Waves of Hanayo [default: 2]
    #[arg(long, value_name = "WAVES")]
    pub waves: Option<i64>,
    /// The most micro-batches on their way in each direction of MixPipe, K [default: from the depth]
    #[arg(long, value_name = "K")]
    pub in_flight: Option<i64>,
    /// What forwards keep: none (all residuals, nothing is recomputed), full (recompute all from the
    /// input) or selective (recompute what is cheap) [default: none]
    #[arg(long, value_name = "MODE")]
    pub recompute: Option<String>,
    /// Cells by which recomputations run before their backwards, auto for the shortest step within
    /// `memory-cap`, or on-demand to wait for the gradient first [default: 0]
    #[arg(long, value_name = "CELLS")]
    #[serde(default, deserialize_with = "word_or_number")]
    pub hoist: Option<String>,
    /// Split backwards; weight halves go into idle time [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub split_backward: Option<bool>,
    /// The most micro-batches whose residuals a worker may hold [default: as many as the schedule does]
    #[arg(long, value_name = "M")]
    pub memory_cap: Option<f64>,
    /// Where `auto` searches for a schedule: line, interleaved, v, wave or mirrored [default: mirrored]
    #[arg(long, value_name = "NAME")]
    pub placement: Option<String>,
    /// Seconds that `auto` may take [default: 10.0]
    #[arg(long, value_name = "SECONDS")]
    pub search_time: Option<f64>,
    /// Steps between the flushes of an asynchronous schedule, T [default: 4]
    #[arg(long, value_name = "T")]
    pub window: Option<i64>,
    /// Micro-batches per group and step, N [default: 8]
    #[arg(long, value_name = "N")]
    pub micro_batches: Option<i64>,
    /// Samples per micro-batch, B [default: 4]
    #[arg(long, value_name = "B")]
    pub micro_batch_size: Option<i64>,
    /// What the layers are: gpt2 predicts the next token, bert masked ones [default: from the preset]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Model size by name; the keys from `layers` to `tied` override it [default: tiny, or bert-tiny for a bert]
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Folder of a model to begin with, of Hugging Face or of `--save`: its sizes take the place of the preset's; not
    /// needed to resume [default: weights drawn at random]
    #[arg(long, value_name = "DIR")]
    pub init: Option<PathBuf>,
    /// Transformer layers [default: from the preset]
    #[arg(long, value_name = "COUNT")]
    pub layers: Option<i64>,
    /// Width of the model; `heads` must divide it [default: from the preset]
    #[arg(long, value_name = "SIZE")]
    pub hidden: Option<i64>,
    /// Attention heads [default: from the preset]
    #[arg(long, value_name = "COUNT")]
    pub heads: Option<i64>,
    /// Tokens per sample [default: from the preset]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<i64>,
    /// Number of token ids; text needs 256, and a bert four more [default: from prepared data, or the preset]
    #[arg(long, value_name = "COUNT")]
    pub vocab: Option<i64>,
    /// Share the token embedding with the output head [default: from the preset]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub tied: Option<bool>,
    /// Optimizer steps [default: 300]
    #[arg(long, value_name = "COUNT")]
    pub steps: Option<i64>,
    /// What makes a step of a gradient: adamw, lamb or sgd [default: adamw]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Peak learning rate [default: 0.4 / hidden]
    #[arg(long, value_name = "RATE")]
    pub lr: Option<f64>,
    /// Steps of linear warm-up [default: a tenth of `steps`, at least 1]
    #[arg(long, value_name = "STEPS")]
    pub warmup: Option<i64>,
    /// How the learning rate falls after the warm-up: cosine, linear or constant [default: cosine]
    #[arg(long, value_name = "NAME")]
    pub lr_schedule: Option<String>,
    /// The learning rate that it falls to [default: a tenth of `lr`]
    #[arg(long, value_name = "RATE")]
    pub min_lr: Option<f64>,
    /// Decay of the first moment of adamw and lamb [default: 0.9]
    #[arg(long, value_name = "RATE")]
    pub beta1: Option<f64>,
    /// Decay of the second moment of adamw and lamb [default: 0.95]
    #[arg(long, value_name = "RATE")]
    pub beta2: Option<f64>,
    /// What adamw and lamb add to the root of the second moment [default: 1e-8]
    #[arg(long, value_name = "EPS")]
    pub eps: Option<f64>,
    /// Momentum of sgd [default: 0.9]
    #[arg(long, value_name = "RATE")]
    pub momentum: Option<f64>,
    /// Decoupled weight decay, on matrices [default: 0.1]
    #[arg(long, value_name = "RATE")]
    pub weight_decay: Option<f64>,
    /// Probability of being dropped, of the embedding, what layers add to it, and attention's probabilities
    /// [default: that of the model to begin with, else 0.0]
    #[arg(long, value_name = "RATE")]
    pub dropout: Option<f64>,
    /// Largest global gradient norm; 0 turns clipping off [default: 1.0]
    #[arg(long, value_name = "NORM")]
    pub clip: Option<f64>,
    /// Keep a loss or gradient that is not finite from the weights [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub check_finite: Option<bool>,
    /// What becomes of such a step: stop ends the run, skip throws its gradient away [default: stop]
    #[arg(long, value_name = "NAME")]
    pub non_finite: Option<String>,
    /// Compare the weights of all replicas after every so many steps; 0 for never [default: 1000]
    #[arg(long, value_name = "STEPS")]
    pub check_replicas: Option<i64>,
    /// Key of all random draws: weights, batches [default: 1]
    #[arg(long, value_name = "SEED")]
    pub seed: Option<i64>,
    /// When gradients are summed over replicas: at-end, eager or eager-opt [default: eager-opt]
    #[arg(long, value_name = "POLICY")]
    pub sync: Option<String>,
    /// Share the optimizer out over the replicas of each tensor: one keeps its moments, updates it, and gives
    /// the weights to the others [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub shard_optimizer: Option<bool>,
    /// Let MPI's own all-reduce sum gradients over replicas, which rounds otherwise than threads do
    /// [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub mpi_allreduce: Option<bool>,
    /// Where to compute: cpu, cuda, cuda:N, wgpu or wgpu:N; or a list with one for each worker [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Numbers of activations: f32, or on CUDA bf16, with weights and sums in f32 [default: f32]
    #[arg(long, value_name = "NUMBERS")]
    pub precision: Option<String>,
    /// How workers reach each other: threads (of this process), mpi (each worker is a process that mpirun or srun
    /// started), nccl (such processes with a GPU of CUDA each), or auto for mpi where there are such processes
    /// [default: auto]
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// CPU threads per worker [default: the machine's cores shared out, at least 1]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<i64>,
    /// Seconds without a message after which a worker gives up [default: 100.0]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
    /// The same until the first step is done, if it is longer [default: 300.0]
    #[arg(long, value_name = "SECONDS")]
    pub start_timeout: Option<f64>,
    /// Folder of the run [default: a fresh one under `runs/`]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// File for one JSON object per step [default: `metrics.jsonl` in the folder of the run]
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// File for a trace of every op, wait, sum and update of all workers, for ui.perfetto.dev [default: none]
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Steps that the trace shows, from A to before B [default: 1..11]
    #[arg(long, value_name = "A..B")]
    pub trace_steps: Option<String>,
    /// Evaluate on the validation text after every so many steps; 0 only at the end [default: 0]
    #[arg(long, value_name = "STEPS")]
    pub eval_every: Option<i64>,
    /// Floating-point operations per second of a worker's device, for `mfu` [default: measured at the start]
    #[arg(long, value_name = "FLOPS")]
    pub peak_flops: Option<f64>,
    /// Folder for a log of each rank, `rank.<rank>.log` [default: none]
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,
    /// Folder for event files that TensorBoard reads [default: none]
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Address of this machine where Prometheus can scrape the last step, such as 127.0.0.1:9464 [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub prometheus: Option<String>,
    /// Folder for the trained weights, as safetensors [default: not saved]
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Steps between checkpoints, and one at the end; 0 for one only where a run is stopped [default: 0]
    #[arg(long, value_name = "STEPS")]
    pub save_every: Option<i64>,
    /// Checkpoints that are kept, the newest [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub keep: Option<i64>,
    /// Go on from a checkpoint: `auto` for the newest of `out` that can be used, or its folder
    /// [default: from the start]
    #[arg(long, value_name = "auto|PATH")]
    pub resume: Option<String>,
}

fn word_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(word) => Ok(Some(word)),
        Value::Integer(number) => Ok(Some(number.to_string())),
        other => Err(Error::custom(format!("{} is no word and no number", other.type_str()))),
    }
}

impl Settings {
    /// All keys, in the order of the help text.
    pub fn keys() -> Vec<String> {
        let command = <Self as clap::Args>::augment_args(clap::Command::new("settings"));
        let keys = command.get_arguments().filter_map(|arg| arg.get_long());
        keys.map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The help names the defaults that hold.
    #[test]
    fn help_states_the_defaults() {
        let config = Layers::default().resolve().unwrap();
        let command = <Settings as clap::Args>::augment_args(clap::Command::new("settings"));
        for arg in command.get_arguments() {
            let help = arg.get_help().unwrap().to_string();
            let (_, stated) = help.rsplit_once("[default: ").unwrap();
            let Some((value, origin)) = config.value(arg.get_long().unwrap()) else {
                continue;
            };
            if *origin == Origin::Default && !stated.contains(' ') {
                let stated = stated.trim_end_matches(']');
                match value.as_float() {
                    Some(value) => assert_eq!(stated.parse(), Ok(value), "{help}"),
                    None => assert_eq!(stated, value.to_string().trim_matches('"'), "{help}"),
                }
            }
        }
    }
}

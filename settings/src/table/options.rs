//! The table of all options. Each row has the type, range, default and help of an option, and the
//! effect of changing it at a resume. The command line, TOML keys, [`Config`], checks and
//! documentation follow from it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use chimera_core::device::WeightFormat;
use chimera_core::engine::{LrSchedule, NonFinite, Optimizer, ParamRules};
use chimera_core::lower::{Border, Hoist, Offloading, Recompute, Sync};
use chimera_core::model::{Architecture, RopeScaling};
use chimera_core::search::Where;
use chimera_core::stage::ParamPatterns;
use chimera_device::{Bf16Products, Device, Precision};
use toml::Value;

use super::choices::{presets, recomputations, reduced};
use super::headings::{is_of_our_models, options, parameters, read, with_parameters};
use super::option::Drawn::{Job, Memory, Passes, Profiled, Shape};
use super::readers::{
    ADAPTED, BF16, CHOOSES, FALL, KFAC, MOMENTS, MOMENTUM, PIPELINES, PROFILED, TRACED,
};
use crate::sources::origin::{Entries, text};
use crate::values::schedules::Named;
use crate::values::value::Setting;
use crate::{
    ByteSize, Compression, DataWeights, Evict, Layout, MlpGate, Opt, Origin, RecomputedStages,
    Scaling, Speeds, StepRange, Survive, Transport,
};

options! {
    /// The training text and the validation text.
    "Data" data: DataSettings {
        /// Training text (each byte is a token), or token ids from `chimera prepare` (`.bin` of
        /// u16, `.u32.bin` of u32); may be repeated
        "data" files: Vec<PathBuf> = [value("PATH").follows("the built-in text").own().see("data.md#data")];
        /// Mixture weights, one per file in `data`, summing to 1, e.g. 0.7,0.3
        "data-weights" weights: Option<DataWeights> =
            [value("WEIGHTS").follows("files one after the other").fixed().see("data.md#mixtures")];
        /// Validation files, made with the same tokenizer as `data`; may be repeated
        "validation-data" validation: Vec<PathBuf> = [value("PATH").follows("the last tenth of `data`").own()];
        /// Restrict attention to tokens of the same document (the data must mark document ends)
        "document-mask" document_mask: bool = [value("BOOL").is("false").fixed().see("data.md#documents")];
    }
    /// The schedule, its shape, and how it is searched for.
    "Schedule" schedule: ScheduleSettings {
        /// Pipeline schedule: a name from `chimera schedule list`, `auto` to search for one, or a
        /// timetable in a `.csv` or `.json` file, which sets `depth` and `micro-batches`
        "schedule" name: Named = [value("NAME|FILE").is("chimera").own().searched().see("own-schedules.md#exchange")];
        /// Workers per pipeline, D; 1 trains without a pipeline
        "depth" depth: usize =
            [value("D").also("pipeline-parallel size").whole(1, 1 << 13).is("4").in_recipe("4", "4; 2 on a CPU with fewer cores").free().searched().drawn(Shape)];
        /// Layers of each stage: balanced (equal forward work), auto (the shortest simulated step,
        /// by `profile` or else FLOPs), uniform (equally many on each rank), or by hand, e.g.
        /// E3T|4T|4T|3TH (embedding, blocks, head), 3,4,4,3, or Megatron's Et*3|(t*4|)*2t*3L
        "layout" layout: Layout = [value("LAYOUT").also("pipeline-model-parallel layout").is("balanced").free().searched()
            .drawn(Profiled).see("training.md#which-layers-a-stage-holds")];
        /// Layers of the first rank in layout uniform
        "decoder-first-pipeline-num-layers" first_layers: Option<usize> =
            [value("N").whole(1, 1 << 14).follows("as the others").free().drawn(Profiled).see("training.md#which-layers-a-stage-holds")];
        /// Layers of the last rank in layout uniform
        "decoder-last-pipeline-num-layers" last_layers: Option<usize> =
            [value("N").whole(1, 1 << 14).follows("as the others").free().drawn(Profiled).see("training.md#which-layers-a-stage-holds")];
        /// Count the embedding as a layer of the first stage in layout uniform
        "account-for-embedding-in-pipeline-split" counts_embedding: bool =
            [value("BOOL").is("false").free().drawn(Profiled).see("training.md#which-layers-a-stage-holds")];
        /// Count the head as a layer of the last stage in layout uniform
        "account-for-loss-in-pipeline-split" counts_loss: bool =
            [value("BOOL").is("false").free().drawn(Profiled).see("training.md#which-layers-a-stage-holds")];
        /// Pipeline groups side by side, W
        "width" width: usize =
            [value("W").also("data-parallel size").whole(1, 1 << 13).is("1").free().drawn(Job).drawn_to(65_535)];
        /// Speed of each rank relative to the others, e.g. 1,1,0.5,1, repeated for further ranks.
        /// `layout` auto gives slow ranks fewer layers
        "speeds" speeds: Option<Speeds> =
            [value("SPEEDS").follows("all alike").free().searched().drawn(Job).see("training.md#ranks-that-are-not-alike")];
        /// Micro-batches per pipeline and step, N
        "micro-batches" micro_batches: usize =
            [value("N").also("gradient accumulation steps").whole(1, 1 << 20).is("8").in_recipe("8", "8; recipe: 2D, at least 4").free().searched().drawn(Shape)
                .drawn_to(1 << 23).drawn_follows("D")];
        /// Samples per micro-batch, B; with `scaling` halving a backward takes half of them
        "micro-batch-size" micro_batch_size: usize = [value("B").whole(1, 1 << 20).is("4").in_recipe("2", "4; recipe: 2").free().drawn(Profiled)];
        /// Order of `chimera` with more micro-batches than workers: direct, doubling, halving, or
        /// auto for the shorter of direct and halving (direct in training if there are more workers
        /// than cores). With schedule `auto`: whether micro-batches are halved
        "scaling" scaling: Scaling = [value("MODE").is("auto").free().searched().drawn(Shape)];
        /// Try a smaller and a larger k of `1f1b` every N steps and keep the fastest; 0 for never
        "adapt-every" adapt_every: u64 =
            [value("STEPS").whole(0, i64::MAX).is("0").free().see("schedules.md#forwards-in-turn")];
        /// Placement that `auto` searches: line, interleaved, v, wave, mirrored, or any for all of
        /// them within `weight-copies` and `max-chunks`
        "placement" placement: Where =
            [is("any").free().searched().drawn(Shape).see("schedules.md#auto-the-shortest-order")];
        /// Timetable in a `.json` or `.csv` file whose placement `auto` searches besides all others
        "own-placement" own_placement: Option<PathBuf> =
            [value("FILE").follows("none").own().searched().drawn(Shape)];
        /// Maximum copies of a stage over all workers in `auto`
        "weight-copies" weight_copies: usize =
            [value("COPIES").whole(1, 1 << 13).is("2").free().searched().drawn(Shape)];
        /// Maximum stages of a pipe on a worker in `auto`
        "max-chunks" max_chunks: usize =
            [value("v").whole(1, 1 << 13).is("2").free().searched().drawn(Shape)];
        /// Time limit of the search for `auto` in seconds; `plan` takes 60 for all candidates
        /// unless this is set
        "search-time" search_time: f64 =
            [value("SECONDS").real(0.0, 1e6).is("10.0").own().searched().drawn(Shape)];
        /// Random seed of the search for `auto`
        "search-seed" search_seed: Option<u64> =
            [value("SEED").whole(0, i64::MAX).follows("`seed`").free().searched().drawn(Shape).drawn_follows("1")];
    }
    /// The passes over the schedule, and the limits on memory.
    "Passes and memory" passes: PassSettings {
        /// Recomputation: none (keep all activations), full (keep only the input of a stage),
        /// selective (recompute what is cheap), or auto (the least that `rank-memory` or
        /// `memory-cap` requires, stage by stage)
        "recompute" recompute: Recompute =
            [value("MODE").words(recomputations).also("activation checkpointing").is("none").free().searched().drawn(Passes)
                .see("training.md#recomputation")];
        /// Stages that `recompute` applies to, counted from 0: all, auto (as few as `rank-memory`
        /// or `memory-cap` requires), or a list, e.g. 0,2-3 or 0-1,2:selective or 0,1:3 (three
        /// layers of stage 1). Other stages keep all activations
        "recompute-stages" recompute_stages: RecomputedStages =
            [value("STAGES").is("all").free().searched().drawn(Passes).see("training.md#recomputation")];
        /// Memory of a rank in GiB, the limit for `recompute-stages` auto
        "rank-memory" rank_memory: Option<f64> = [value("GIB").real(0.0, 1e6).follows("no limit").own().read_by(CHOOSES)];
        /// Cells by which a recomputation runs ahead of its backward: a number, auto (the shortest
        /// step within `memory-cap`), or on-demand (wait for the gradient first)
        "hoist" hoist: Hoist =
            [value("CELLS").is("0").free().searched().drawn(Passes).see("schedules.md#splitting-and-recomputing")];
        /// Split backwards and move the halves for weight gradients into idle time
        "split-backward" split_backward: bool = [value("BOOL").is("false").free().searched().drawn(Passes)];
        /// Boundary between two steps: step (all workers end a step before any begins the next) or
        /// free (a worker goes on as soon as the weights it reads are updated, for `window` steps)
        "border" border: Border =
            [value("MODE").is("step").free().drawn(Passes).see("schedules.md#a-free-border-between-steps")];
        /// BPipe: early workers park surplus activations on late workers until the backward
        "bpipe" bpipe: bool = [value("BOOL").is("false").free().drawn(Passes).see("schedules.md#moving-activations")];
        /// Activations to move to host memory until the backward: none, or auto for those that do
        /// not fit into `memory-cap` (without a cap: as many as cost no time according to
        /// `profile`)
        "offload" offload: Offloading =
            [value("MODE").is("none").free().drawn(Passes).see("schedules.md#moving-activations")];
        /// Maximum micro-batches whose activations a worker may hold; schedules that hold more are
        /// refused
        "memory-cap" memory_cap: Option<f64> =
            [value("M").real(0.0, 1e6).follows("no limit").free().searched().drawn(Memory)];
    }
    /// The profile that says how long everything takes.
    "Costs" costs: CostSettings {
        /// Profile of this machine from `chimera profile`: measured costs for everything chosen by
        /// cost, e.g. the order of `auto`
        "profile" profile: Option<PathBuf> = [value("FILE").follows("FLOPs").own().searched().see("planning.md#profiles").drawn(Profiled).drawn_follows("the times that are given")];
        /// Profile to predict the run from; at its end the prediction is compared with what was
        /// measured
        "predict" predict: Option<PathBuf> = [value("FILE").follows("`profile`").own().see("planning.md#profiles")];
        /// Accept a profile of another machine, device, precision or build, or one measured on
        /// a busy machine
        "any-profile" any_profile: bool =
            [value("BOOL").is("false").own().drawn(Profiled).read_by(PROFILED)];
    }
    /// The architecture of the model and its sizes.
    "Model" model: ModelSettings {
        /// Architecture: gpt2 or llama (also Qwen2 and Mistral), which predict the next token, or
        /// bert, which predicts masked tokens
        "model" architecture: Architecture = [follows("from the preset").fixed().see("training.md#bert").drawn(Profiled)];
        /// Model and sizes by name; the other model options override it
        "preset" preset: String = [words(presets).is("tiny").own().drawn(Profiled)];
        /// Folder of a model to start from, or its name on a hub (org/name@revision); its sizes replace
        /// the preset's. Not needed to resume
        "init" init: Option<PathBuf> = [value("DIR").follows("random weights").own().see("checkpoints.md#models-in-and-out")];
        /// Transformer layers
        "layers" layers: usize = [value("COUNT").whole(1, 1 << 14).follows("from the preset").fixed().drawn(Profiled)];
        /// Features per token; `heads` must divide them, unless `head-dim` is set
        "hidden" hidden: usize = [value("SIZE").whole(1, 1 << 20).follows("from the preset").fixed().drawn(Profiled)];
        /// Attention heads
        "heads" heads: usize = [value("COUNT").whole(1, 1 << 20).follows("from the preset").fixed().drawn(Profiled)];
        /// Key and value heads of a llama, shared by its query heads; must divide `heads`
        "kv-heads" kv_heads: Option<usize> = [value("COUNT").also("grouped-query attention")
            .whole(1, 1 << 20).follows("from the preset, or `heads`").fixed().see("training.md#llama").drawn(Profiled)];
        /// Features per head of a llama if not `hidden` / `heads`, as in Mistral NeMo; 0 for
        /// `hidden` / `heads`
        "head-dim" head_dim: Option<usize> =
            [value("SIZE").whole(0, 1 << 20).follows("from the preset, or 0").fixed().see("training.md#llama").drawn(Profiled)];
        /// Features inside the MLP of a llama
        "mlp-hidden" mlp_hidden: Option<usize> = [value("SIZE").also("intermediate size")
            .whole(1, 1 << 22).follows("from the preset, or 8/3 `hidden`").fixed().drawn(Profiled)];
        /// Gate function of a llama's MLP: silu, gelu or gelu-tanh
        "activation" activation: Option<MlpGate> = [follows("from the preset, or silu").fixed().drawn(Profiled)];
        /// Give queries, keys and values of a llama biases, as in Qwen2
        "qkv-bias" qkv_bias: Option<bool> =
            [value("BOOL").follows("from the preset, or false").fixed().drawn(Profiled)];
        /// Tokens that a token of a llama attends to, itself included, as in Mistral; 0 for all
        /// earlier tokens
        "sliding-window" sliding_window: Option<usize> =
            [value("TOKENS").whole(0, 1 << 24).follows("from the preset, or 0").fixed().drawn(Profiled)];
        /// Base of the rotary frequencies of a llama
        "rope-theta" rope_theta: Option<f64> = [value("THETA").also("rotary base")
            .real(1.0, 1e30).follows("from the preset, or 10000").fixed().drawn(Profiled)];
        /// Scaling of the rotary frequencies of a llama for longer samples: none, linear:factor=F,
        /// or dynamic, yarn or llama3 with more numbers
        "rope-scaling" rope_scaling: Option<RopeScaling> =
            [value("SCALING").follows("from the preset, or none").fixed().see("training.md#llama").drawn(Profiled)];
        /// Term added to the mean square in the norms of a llama
        "norm-eps" norm_eps: Option<f64> =
            [value("EPS").real(1e-30, 1.0).follows("from the preset, or 1e-5").fixed().drawn(Profiled)];
        /// Maximum sample length in tokens (rows of the position table, if there is one). With
        /// rotary positions it may exceed that of `init`
        "context" context: usize = [value("TOKENS").also("maximum position embeddings").whole(1, 1 << 24)
            .follows("from the preset").fixed().drawn(Profiled)];
        /// Tokens per sample, at most `context`
        "sequence" sequence: usize = [value("TOKENS").also("sequence length").whole(1, 1 << 24).follows("`context`").fixed()
            .see("training.md#samples-shorter-than-the-context").drawn(Profiled)];
        /// Number of token ids; text needs 256, and bert four more
        "vocab" vocab: usize =
            [value("COUNT").whole(1, 1 << 24).follows("from prepared data, or the preset").fixed().drawn(Profiled)];
        /// Share the token embedding with the output head
        "tied" tied: bool = [value("BOOL").follows("from the preset").fixed().drawn(Profiled)];
        /// Dropout probability of the embedding, of residual additions and of attention weights
        "dropout" dropout: f64 = [value("RATE").real(0.0, 0.9).follows("from `init`, else 0.0").see("training.md#dropout").drawn(Profiled)];
        /// Names of parameters that keep their values, e.g. `wte.*; h.0.*`. No backward runs below
        /// the first trained one
        "freeze" freeze: Option<ParamPatterns> = [value("PATTERNS").fixed().see("fine-tuning.md#frozen-parts")];
        /// Number format of frozen linear layers: f32, bf16, int8, nf4 or nf4-double
        "frozen-weights" frozen_weights: Option<WeightFormat> = [value("FORMAT").follows("f32").fixed().see("fine-tuning.md#frozen-weights-in-fewer-bits")];
        /// Rank of LoRA adapters of a gpt2 or llama; only they are trained
        "lora" lora: Option<usize> = [value("RANK").whole(1, 1 << 16).fixed().see("fine-tuning.md#adapters")];
        /// LoRA's alpha: adapters are scaled by alpha / rank
        "lora-alpha" lora_alpha: Option<usize> =
            [value("ALPHA").whole(1, 1 << 20).follows("`lora`").fixed().read_by(ADAPTED)];
        /// Linear layers with adapters, e.g. `q_proj; v_proj`
        "lora-targets" lora_targets: Option<ParamPatterns> = [value("PATTERNS").follows("all").fixed().read_by(ADAPTED)];
        /// Dropout probability of adapters' inputs
        "lora-dropout" lora_dropout: f64 = [value("RATE").real(0.0, 0.999).is("0.0")];
        /// Also train a magnitude for each output (DoRA)
        "dora" dora: bool = [value("BOOL").is("false").fixed()];
        /// Directory of an adapter of peft to start from, with its rank, scale and layers
        "adapter" adapter: Option<PathBuf> = [value("DIR").own().see("fine-tuning.md#adapters")];
    }
    /// The number of steps, the optimizer and its rates.
    "Optimizer" training: TrainingSettings {
        /// Optimizer steps
        "steps" steps: u64 = [value("COUNT").whole(1, 1 << 40).is("300").in_recipe("900", "300; recipe: 900")];
        /// Optimizer: adamw, lamb, sgd, muon or kfac
        "optimizer" optimizer: Optimizer = [is("adamw").in_recipe("muon", "adamw; recipe: muon on CPUs").fixed().see("training.md#optimizers")];
        /// Peak learning rate
        "lr" lr: f64 = [value("RATE").real(0.0, 1e30).follows("0.4 / hidden, or with `init` a tenth of that; recipe with muon: 1.2 / hidden").see("checkpoints.md#models-in-and-out")];
        /// Steps of linear learning-rate warm-up
        "warmup" warmup: u64 = [value("STEPS").whole(0, 1 << 40).follows("a tenth of `steps`, at least 10 (all if fewer)")];
        /// Decay of the learning rate: cosine, linear, wsd (warm-up, stable, then a linear decay)
        /// or constant
        "lr-schedule" lr_schedule: LrSchedule = [is("cosine").in_recipe("wsd", "cosine; recipe: wsd")];
        /// Number of final steps over which the learning rate decays, the first still at `lr`
        "decay-steps" decay_steps: Option<u64> = [value("STEPS").whole(2, 1 << 40)
            .follows("all after `warmup`; under wsd a fifth of `steps`, at least 2").read_by(FALL)];
        /// Final learning rate, which one more step would have
        "min-lr" min_lr: f64 = [value("RATE").real(0.0, 1e30).follows("a tenth of `lr`").read_by(FALL)];
        /// Decay rate of the first moment: adamw, lamb, and the parameters that muon and kfac leave
        /// to adamw
        "beta1" beta1: f64 = [value("RATE").real(0.0, 0.999_999).is("0.9").read_by(MOMENTS)];
        /// Decay rate of the second moment: adamw, lamb, and the parameters that muon and kfac
        /// leave to adamw
        "beta2" beta2: f64 = [value("RATE").real(0.0, 0.999_999).is("0.95").read_by(MOMENTS)];
        /// Term added to the root of the second moment: adamw, lamb, and the parameters that muon
        /// and kfac leave to adamw
        "eps" eps: f64 = [value("EPS").real(1e-30, 1.0).is("1e-8").read_by(MOMENTS)];
        /// Momentum of sgd and muon, and of the preconditioned gradients of kfac
        "momentum" momentum: f64 = [value("RATE").real(0.0, 0.999_999).is("0.9").read_by(MOMENTUM)];
        /// Recompute the factors of kfac every N updates; the new inverses apply N updates later
        "kfac-every" kfac_every: u64 = [value("UPDATES").whole(1, 1 << 40).is("10").fixed().see("training.md#k-fac").read_by(KFAC)];
        /// Damping of kfac: added to the diagonal of a factor, as a fraction of the diagonal's mean
        "kfac-damping" kfac_damping: f64 = [value("PART").real(1e-9, 1e9).is("0.03").see("training.md#k-fac").read_by(KFAC)];
        /// Decay rate of the running average of the factors of kfac
        "kfac-decay" kfac_decay: f64 = [value("RATE").real(0.0, 0.999_999).is("0.9").see("training.md#k-fac").read_by(KFAC)];
        /// Decoupled weight decay of matrices and embeddings
        "weight-decay" weight_decay: f64 = [value("RATE").real(0.0, 1.0).is("0.1")];
        /// Learning-rate factors and weight decay of parameters by name, e.g. `wte.*: lr=0.1,
        /// weight-decay=0`
        "param-groups" param_groups: Option<ParamRules> = [value("RULES").also("parameter groups").see("training.md#parameter-groups")];
        /// Maximum global gradient norm; larger gradients are scaled down. 0 turns clipping off
        "clip" clip: f64 = [value("NORM").also("gradient clipping").real(0.0, 1e9).is("1.0")];
        /// Check that loss and gradients are finite before they change the weights
        "check-finite" check_finite: bool = [value("BOOL").is("true").free()];
        /// Reaction to a loss or gradient that is not finite: stop the run, or skip the step
        "non-finite" non_finite: NonFinite = [is("stop").free()];
        /// Random seed of weights, batches and samples
        "seed" seed: u64 = [value("SEED").whole(0, i64::MAX).is("1").fixed()];
    }
    /// The sums of gradients over the replicas of a stage.
    "Data parallelism" replicas: ReplicaSettings {
        /// When gradients are reduced over replicas: at-end, eager, eager-opt or in-backward
        "sync" sync: Sync = [value("POLICY").is("eager-opt").free().drawn(Job).see("schedules.md#when-gradients-are-summed")];
        /// Let one replica of a tensor keep its moments, update it, and send it to the others
        "shard-optimizer" shard_optimizer: bool =
            [value("BOOL").also("ZeRO stage 1").is("false").in_recipe("true", "false; recipe: true with muon").free().see("sharding.md")];
        /// Shard over replicas: 1 the optimizer (`shard-optimizer`), 2 also gradients, 3 also weights
        "zero" zero: u32 = [value("STAGE").whole(0, 3).also("ZeRO stage").is("0").free().drawn(Job).see("sharding.md")];
        /// Maximum stages with whole weights on a worker, with `zero` 3
        "whole-stages" whole_stages: u32 = [value("N").whole(1, 65_535).is("1").free().drawn(Job).see("sharding.md#stage-3")];
        /// Consecutive ranks (as of a node) that sum gradients among themselves first; 0 for all at once
        "reduce-within" reduce_within: u32 = [value("RANKS").whole(0, 65_535).is("0").drawn(Job).see("sharding.md#sums-inside-of-nodes-first")];
        /// Minimum bytes of a gradient bucket; tensors are never split
        "bucket-size" bucket_size: ByteSize =
            [value("BYTES").also("bucket_cap_mb").is("25MiB").free().see("training.md#buckets-of-gradients")];
        /// Number format of gradients sent between replicas: f32, or bf16 for half the traffic;
        /// sums are in f32
        "reduce-precision" reduce_precision: Precision = [value("FORMAT").words(reduced).is("f32").see("training.md#gradients-in-bf16")];
        /// Reduce gradients by MPI's own all-reduce, which rounds differently from threads
        "mpi-allreduce" mpi_allreduce: bool = [value("BOOL").is("false").free().see("distributed.md#sums-by-mpi")];
        /// Compare the weights of all replicas every N steps; 0 for never
        "check-replicas" check_replicas: u64 = [value("STEPS").whole(0, 1 << 40).is("1000").free()];
    }
    /// The devices of the workers, their links, and what happens when a rank dies.
    "Devices" devices: DeviceSettings {
        /// Device of the workers: cpu, cuda, cuda:N, wgpu or wgpu:N, or a list with one per worker
        /// of a pipeline
        "device" device: String =
            [value("DEVICE").such_as(Device::EXAMPLES).is("cpu").free().see("gpu.md").drawn(Profiled)];
        /// Number format of matrix products: f32; bf16 on CUDA (activations too) and on CPUs;
        /// tf32 on CUDA. Weights and sums are f32
        "precision" precision: Precision = [value("FORMAT").is("f32").see("training.md#precision").drawn(Profiled)];
        /// Instructions with which CPUs multiply bf16: amx, dot, fma (rounded operands in f32), or
        /// auto (the fastest as measured)
        "bf16-products" bf16_products: Bf16Products = [value("WAY").is("auto").read_by(BF16).see("training.md#precision")];
        /// Transport between workers: threads of this process, mpi (processes started by mpirun or
        /// srun), nccl (such processes with one NVIDIA GPU each), quic (processes on any network,
        /// see `--rank`), or auto (mpi if there are processes of mpirun or srun)
        "transport" transport: Transport = [is("auto").free().see("distributed.md")];
        /// Format of activations and their gradients between workers: f32, bf16, int8 or int8:0-1,2-3
        "wire" wire: Compression = [value("FORMAT").is("f32").drawn(Job).read_by(PIPELINES).see("network.md#slow-links")];
        /// Reaction to a process rank's death: off (all ranks end), respawn (a new process takes its
        /// place and its stages come from their replicas) or narrow (the others train on and share
        /// its work); over Open MPI 5 or quic
        "survive" survive: Survive = [is("off").free().see("distributed.md#when-a-rank-dies-and-the-training-goes-on")];
        /// Kill stalled ranks so that `survive` can recover: off, or stalled (named by the hang
        /// report, and no progress for another `timeout`)
        "evict" evict: Evict = [is("off").free().see("distributed.md#ranks-that-are-stalled")];
        /// Back up each rank on its neighbour every N steps, for `survive`; losing state that no
        /// replica holds then costs at most N steps. 0 for never
        "shadow-every" shadow_every: u64 = [value("STEPS").whole(0, 1 << 40).is("0").free().see("distributed.md#what-is-held-once")];
        /// CPU threads per worker
        "threads" threads: usize =
            [value("COUNT").whole(1, 1 << 10).follows("the cores of the machine / its workers, at least 1").own().drawn(Profiled)];
        /// Seconds that a worker waits for a message before it gives up
        "timeout" timeout: f64 = [value("SECONDS").real(0.001, 1e6).is("100.0").own()];
        /// Seconds that a worker waits until the first step completes, if longer than `timeout`
        "start-timeout" start_timeout: f64 = [value("SECONDS").real(0.001, 1e6).is("300.0").own()];
        /// Peak FLOP/s of a worker's device, for `mfu`
        "peak-flops" peak_flops: Option<f64> =
            [value("FLOPS").real(1.0, 1e30).follows("measured at the start").own()];
    }
    /// The files that a run writes beside its checkpoints.
    "Output" output: OutputSettings {
        /// Directory of the run
        "out" out: Option<PathBuf> = [value("DIR").follows("the next free of runs/0001, runs/0002, …").own()];
        /// File for the metrics, one JSON object per step
        "metrics" metrics: Option<PathBuf> =
            [value("FILE").follows("metrics.jsonl in the directory of the run").own()];
        /// Evaluate on the validation text every N steps; 0 evaluates only at the end
        "eval-every" eval_every: u64 = [value("STEPS").whole(0, 1 << 40).is("0").free().see("training.md#evaluation")];
        /// Print a line about the training every N steps; 0 for none
        "log-every" log_every: Option<u64> =
            [value("STEPS").whole(0, 1 << 40).follows("about 30 lines in all").own()];
        /// File for a trace of all workers, for ui.perfetto.dev
        "trace" trace: Option<PathBuf> = [value("FILE").own().see("runs.md#traces")];
        /// Steps in the trace, from A to before B
        "trace-steps" trace_steps: StepRange =
            [value("A..B").follows("1..11, or 0..1 of a single step").free().read_by(TRACED)];
        /// Time each kernel in the traced steps, on CUDA: shown in a lane below its worker, with
        /// totals by name at the end
        "trace-kernels" trace_kernels: bool = [value("BOOL").is("false").free().see("runs.md#kernels").read_by(TRACED)];
        /// Write the report of the run, report.html, into its directory at the end
        "report" report: bool = [value("BOOL").is("true").own().see("runs.md#a-report-of-a-run")];
        /// Directory for a log of each rank, `rank.<rank>.log`
        "log" log: Option<PathBuf> = [value("DIR").own()];
        /// Directory for event files that TensorBoard reads
        "tensorboard" tensorboard: Option<PathBuf> = [value("DIR").own()];
        /// Local address where Prometheus can scrape the last step, e.g. 127.0.0.1:9464
        "prometheus" prometheus: Option<SocketAddr> = [value("ADDRESS").own()];
    }
    /// The checkpoints and the trained weights.
    "Checkpoints" checkpoints: CheckpointSettings {
        /// Directory for the trained weights, as safetensors
        "save" save: Option<PathBuf> = [value("DIR").follows("model in the directory of the run").own()];
        /// Do not save the trained weights
        "no-save" no_save: bool = [value("BOOL").is("false").own()];
        /// Save a checkpoint every N steps and at the end; 0 saves one only when the run is stopped
        "save-every" save_every: u64 = [value("STEPS").whole(0, 1 << 40).is("0").free().see("checkpoints.md#checkpoints")];
        /// Number of newest checkpoints to keep
        "keep" keep: usize = [value("COUNT").whole(2, 1 << 20).is("2").own()];
        /// Checkpoint to resume from: its directory, or `auto` for the newest usable one in `out`
        "resume" resume: Option<String> =
            [value("auto|PATH").such_as(&["auto"]).follows("from the start").own()];
    }
}

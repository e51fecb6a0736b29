//! Names of our options in other programs: HF Trainer, Accelerate, DeepSpeed, axolotl, litgpt,
//! Megatron-LM, torchtitan and nanoGPT. Each means the same there.

use crate::OPTIONS;

/// Other names of each option.
const NAMES: &[(&str, &[&str])] = &[
    ("data", &["train-file", "data-path", "train-data-path"]),
    ("validation-data", &["validation-file", "valid-data-path"]),
    ("schedule", &["pipeline-parallel-schedule"]),
    (
        "depth",
        &[
            "pp",
            "pp-size",
            "pipe-parallel-size",
            "pipeline-parallel-size",
            "pipeline-model-parallel-size",
            "pipeline-parallel-degree",
        ],
    ),
    ("layout", &["pipeline-model-parallel-layout"]),
    ("width", &["dp", "dp-size", "data-parallel-size", "data-parallel-replicate-degree"]),
    ("micro-batches", &["gradient-accumulation-steps", "num-micro-batches", "num-microbatches"]),
    (
        "micro-batch-size",
        &[
            "microbatch-size",
            "per-device-train-batch-size",
            "train-micro-batch-size-per-gpu",
            "pipeline-parallel-microbatch-size",
        ],
    ),
    ("chunks", &["virtual-pipeline-model-parallel-size"]),
    ("recompute", &["activation-checkpoint", "recompute-granularity"]),
    ("init", &["model-name-or-path", "base-model", "initial-checkpoint-dir"]),
    ("layers", &["num-layers", "n-layer", "num-hidden-layers"]),
    ("hidden", &["hidden-size", "n-embd"]),
    ("heads", &["num-attention-heads", "n-head"]),
    ("kv-heads", &["num-query-groups", "num-key-value-heads", "n-kv-heads"]),
    ("mlp-hidden", &["ffn-hidden-size", "intermediate-size"]),
    ("activation", &["hidden-act"]),
    ("qkv-bias", &["add-qkv-bias"]),
    ("sliding-window", &["window-size"]),
    ("rope-theta", &["rotary-base"]),
    ("norm-eps", &["norm-epsilon", "rms-norm-eps", "layernorm-epsilon"]),
    ("context", &["max-position-embeddings", "block-size"]),
    ("sequence", &["seq-len", "seq-length", "sequence-len", "max-seq-length", "max-seq-len"]),
    ("vocab", &["vocab-size"]),
    ("steps", &["max-steps", "max-iters", "train-iters"]),
    ("optimizer", &["optim"]),
    ("lr", &["learning-rate"]),
    ("warmup", &["lr-warmup-iters", "lr-warmup-steps", "warmup-steps", "warmup-iters"]),
    ("lr-schedule", &["lr-decay-style", "lr-scheduler", "lr-scheduler-type"]),
    ("decay-steps", &["lr-wsd-decay-iters"]),
    ("clip", &["clip-grad", "grad-clip", "gradient-clipping", "max-grad-norm", "max-norm"]),
    ("beta1", &["adam-beta1"]),
    ("beta2", &["adam-beta2"]),
    ("eps", &["adam-eps", "adam-epsilon"]),
    ("shard-optimizer", &["use-distributed-optimizer"]),
    ("bucket-size", &["reduce-bucket-size"]),
    ("precision", &["dtype", "mixed-precision"]),
    ("reduce-precision", &["reduce-dtype", "communication-data-type"]),
    ("eval-every", &["eval-interval", "eval-steps"]),
    ("log-every", &["log-interval", "logging-steps", "log-freq", "steps-per-print"]),
    ("save-every", &["save-interval", "save-steps"]),
    ("keep", &["keep-latest-k", "save-total-limit"]),
    ("out", &["out-dir", "output-dir", "dump-folder"]),
    ("tensorboard", &["tensorboard-dir", "logging-dir"]),
    ("resume", &["resume-from-checkpoint"]),
];

/// Returns the other names of an option.
pub(crate) fn names(option: &str) -> &'static [&'static str] {
    NAMES.iter().find(|(own, _)| *own == option).map_or(&[], |(_, names)| *names)
}

/// Returns our name of an option from its name in another program.
pub fn own_name(name: &str) -> Option<&'static str> {
    let own = OPTIONS.iter().find(|option| names(option.name).contains(&name));
    own.map(|option| option.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layers;
    use crate::sources::absent::ABSENT;

    #[test]
    fn every_name_stands_for_one_option() {
        let own = OPTIONS.iter().map(|option| option.name);
        let others = NAMES.iter().flat_map(|(_, names)| *names);
        let absent = ABSENT.iter().flat_map(|(names, _)| *names);
        let mut all: Vec<&str> = own.chain(others.chain(absent).copied()).collect();
        let n_names = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n_names);
        assert!(NAMES.iter().all(|(own, _)| OPTIONS.iter().any(|option| option.name == *own)));
    }

    #[test]
    fn other_names_are_read() {
        for (words, own) in [
            ("--pp 8", "--depth 8"),
            ("--dp 2", "--width 2"),
            ("--pipeline-model-parallel-size 8", "--depth 8"),
            ("--gradient-accumulation-steps 4", "--micro-batches 4"),
            ("--num-layers 2 --hidden-size 8", "--layers 2 --hidden 8"),
            ("--num-attention-heads 2 --seq-length 8", "--heads 2 --sequence 8"),
            ("--num-query-groups 2 --ffn-hidden-size 8", "--kv-heads 2 --mlp-hidden 8"),
            ("--rotary-base 5e5 --rms-norm-eps 1e-6", "--rope-theta 5e5 --norm-eps 1e-6"),
            ("--max-position-embeddings 8 --seq-len 4", "--context 8 --sequence 4"),
            ("--block-size 8 --n-embd 4", "--context 8 --hidden 4"),
            ("--train-iters 5 --lr-warmup-iters 2", "--steps 5 --warmup 2"),
            ("--max-steps 5 --clip-grad 2", "--steps 5 --clip 2"),
            ("--grad-clip 2 --dtype bf16", "--clip 2 --precision bf16"),
            ("--activation-checkpoint full --save-interval 3", "--recompute full --save-every 3"),
        ] {
            assert_eq!(Layers::parse(words).unwrap(), Layers::parse(own).unwrap(), "{words}");
        }
    }
}

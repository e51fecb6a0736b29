//! Names of our options in other programs (torchtitan, Megatron-LM, nanoGPT), and names of options
//! that do not exist here.

/// Other names of each option.
const NAMES: &[(&str, &[&str])] = &[
    (
        "depth",
        &[
            "pp",
            "pipeline-parallel-size",
            "pipeline-model-parallel-size",
            "pipeline-parallel-degree",
        ],
    ),
    ("layout", &["pipeline-model-parallel-layout"]),
    ("width", &["dp", "data-parallel-size", "data-parallel-replicate-degree"]),
    ("micro-batches", &["gradient-accumulation-steps", "num-micro-batches", "num-microbatches"]),
    ("micro-batch-size", &["microbatch-size"]),
    ("recompute", &["activation-checkpoint", "recompute-granularity"]),
    ("layers", &["num-layers", "n-layer"]),
    ("hidden", &["hidden-size", "n-embd"]),
    ("heads", &["num-attention-heads", "n-head"]),
    ("kv-heads", &["num-query-groups", "num-key-value-heads", "n-kv-heads"]),
    ("mlp-hidden", &["ffn-hidden-size", "intermediate-size"]),
    ("activation", &["hidden-act"]),
    ("qkv-bias", &["add-qkv-bias"]),
    ("sliding-window", &["window-size"]),
    ("rope-theta", &["rotary-base"]),
    ("norm-eps", &["norm-epsilon", "rms-norm-eps"]),
    ("context", &["max-position-embeddings", "block-size"]),
    ("sequence", &["seq-len", "seq-length"]),
    ("vocab", &["vocab-size"]),
    ("steps", &["max-steps", "max-iters", "train-iters"]),
    ("lr", &["learning-rate"]),
    ("warmup", &["lr-warmup-iters", "warmup-steps", "warmup-iters"]),
    ("lr-schedule", &["lr-decay-style"]),
    ("decay-steps", &["lr-wsd-decay-iters"]),
    ("clip", &["clip-grad", "grad-clip", "max-norm"]),
    ("beta1", &["adam-beta1"]),
    ("beta2", &["adam-beta2"]),
    ("eps", &["adam-eps"]),
    ("shard-optimizer", &["use-distributed-optimizer"]),
    ("precision", &["dtype"]),
    ("reduce-precision", &["reduce-dtype", "communication-data-type"]),
    ("eval-every", &["eval-interval"]),
    ("save-every", &["save-interval"]),
    ("keep", &["keep-latest-k"]),
    ("out", &["out-dir"]),
];

/// Names of options that do not exist here, each with advice.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &["tp", "tensor-parallel-size", "tensor-model-parallel-size", "tensor-parallel-degree"],
        "there is no tensor parallelism: cut the model by layers, with `depth`",
    ),
    (
        &["global-batch-size", "batch-size", "batch"],
        "the global batch is `width` * `micro-batches` * `micro-batch-size`: choose these",
    ),
    (&["epochs", "num-train-epochs"], "choose `steps`"),
    (
        &["gpus", "nodes", "nproc-per-node", "world-size"],
        "`width` * `depth` ranks are threads, or processes that mpirun or srun starts",
    ),
    (
        &["checkpoint", "checkpointing"],
        "`save-every` saves checkpoints and `resume` goes on from one; `recompute` is activation checkpointing",
    ),
    (&["bf16"], "choose `precision` bf16"),
    (&["tf32", "allow-tf32"], "choose `precision` tf32"),
    (&["grad-reduce-in-bf16"], "choose `reduce-precision` bf16"),
    (&["fp16"], "there is no fp16: choose `precision` bf16 or f32"),
];

/// Returns the other names of an option.
pub(crate) fn names(option: &str) -> &'static [&'static str] {
    NAMES.iter().find(|(own, _)| *own == option).map_or(&[], |(_, names)| *names)
}

/// Returns advice for a name of an option that does not exist here.
pub fn absent(name: &str) -> Option<&'static str> {
    ABSENT.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layers, OPTIONS};

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

    #[test]
    fn what_is_no_option_says_what_to_do() {
        for (words, hint) in [
            ("--tp 2", "no tensor parallelism"),
            ("--tensor-model-parallel-size 2", "no tensor parallelism"),
            ("--global-batch-size 512", "choose these"),
            ("--batch-size 4", "choose these"),
            ("--epochs 3", "choose `steps`"),
            ("--gpus 2", "mpirun or srun"),
            ("--bf16", "choose `precision` bf16"),
            ("--checkpoint x", "`save-every` saves checkpoints"),
        ] {
            let refusal = Layers::parse(words).unwrap_err().to_string();
            assert!(refusal.contains(hint), "{refusal}");
        }
    }
}

//! Options of other programs that do not exist here, each with advice.

/// Names of options that do not exist here. Advice names our options with their dashes.
pub(super) const ABSENT: &[(&[&str], &str)] = &[
    (
        &[
            "tp",
            "tp-size",
            "tensor-parallel-size",
            "tensor-model-parallel-size",
            "tensor-parallel-degree",
        ],
        "there is no tensor parallelism: cut the model by layers, with `--depth`",
    ),
    (
        &[
            "sp",
            "sequence-parallel",
            "cp",
            "cp-size",
            "context-parallel-size",
            "context-parallel-degree",
        ],
        "there is no context parallelism; `--schedule seq1f1b --slices` pipelines slices of samples",
    ),
    (
        &["ep", "ep-size", "expert-parallel-degree", "expert-model-parallel-size", "num-experts"],
        "there are no experts and no expert parallelism",
    ),
    (
        &[
            "vp",
            "vpp",
            "num-layers-per-virtual-pipeline-stage",
            "num-virtual-stages-per-pipeline-rank",
        ],
        "stages per worker are `--chunks`, with `--schedule interleaved`",
    ),
    (
        &["global-batch-size", "batch-size", "batch", "train-batch-size", "total-batch-size"],
        "the global batch is `--width` * `--micro-batches` * `--micro-batch-size`: choose these",
    ),
    (
        &["local-batch-size"],
        "the batch of a pipeline is `--micro-batches` * `--micro-batch-size`: choose these",
    ),
    (
        &["epochs", "num-epochs", "num-train-epochs"],
        "choose `--steps`; a step has `--width` * `--micro-batches` * `--micro-batch-size` samples",
    ),
    (
        &[
            "gpus",
            "num-gpus",
            "n-gpus",
            "nodes",
            "num-nodes",
            "nnodes",
            "nproc-per-node",
            "world-size",
            "devices",
            "num-processes",
            "num-machines",
            "multi-gpu",
            "ranks",
        ],
        "`--width` * `--depth` ranks are threads, or processes that mpirun or srun starts",
    ),
    (
        &["local-rank", "rank", "gpu-ids"],
        "the launcher numbers the ranks; `--device` names their devices",
    ),
    (
        &["checkpoint", "checkpointing", "checkpoint-dir", "checkpoint-path"],
        "`--save-every` saves checkpoints and `--resume` goes on from one; `--recompute` is activation checkpointing",
    ),
    (
        &["load", "load-dir", "pretrained", "pretrained-model", "init-from", "from-pretrained"],
        "`--resume` continues a run from a checkpoint, and `--init` starts from a model",
    ),
    (
        &[
            "gradient-checkpointing",
            "activation-checkpointing",
            "recompute-activations",
            "checkpoint-activations",
            "use-activation-checkpointing",
        ],
        "choose `--recompute full`, or `--recompute selective`",
    ),
    (
        &["recompute-method", "recompute-num-layers"],
        "`--recompute-stages` chooses the stages, and their layers, that recompute",
    ),
    (
        &["fsdp", "use-fsdp", "zero3", "data-parallel-shard-degree", "sharding-strategy"],
        "weights are not sharded within a stage: cut the model with `--depth`, and shard the optimizer with `--shard-optimizer`",
    ),
    (
        &["deepspeed", "deepspeed-config", "use-deepspeed", "zero", "zero-stage", "zero1"],
        "there is no DeepSpeed: `--shard-optimizer` is ZeRO stage 1, and `--depth` divides the weights",
    ),
    (
        &["offload-optimizer", "cpu-offload", "optimizer-cpu-offload", "offload-param"],
        "the optimizer stays on the device: `--shard-optimizer` divides it, and `--offload auto` moves activations",
    ),
    (
        &["overlap-grad-reduce", "overlap-comm", "ddp-bucket-cap-mb"],
        "see `--sync` and `--bucket-size`",
    ),
    (&["bf16", "bfloat16"], "choose `--precision bf16`"),
    (&["tf32", "allow-tf32"], "choose `--precision tf32`"),
    (&["grad-reduce-in-bf16"], "choose `--reduce-precision bf16`"),
    (&["fp16", "float16", "half"], "there is no fp16: choose `--precision bf16` or f32"),
    (
        &[
            "compile",
            "torch-compile",
            "use-flash-attn",
            "flash-attention",
            "attn-implementation",
            "transformer-impl",
        ],
        "kernels are built in: leave it out",
    ),
    (
        &[
            "wandb",
            "wandb-project",
            "wandb-log",
            "report-to",
            "logger-name",
            "log-with",
            "mlflow",
            "use-wandb",
        ],
        "metrics go to `--tensorboard`, `--prometheus` or the file of `--metrics`",
    ),
    (
        &[
            "tokenizer",
            "tokenizer-dir",
            "tokenizer-name",
            "tokenizer-type",
            "tokenizer-model",
            "vocab-file",
            "merge-file",
        ],
        "make tokens of the text first, with `chimera prepare --tokenizer`, and name its file with `--data`",
    ),
    (
        &["dataset", "datasets", "dataset-name", "dataset-path", "text", "corpus", "input"],
        "name files of text or token ids with `--data`",
    ),
    (&["split", "val-set-size"], "name files for validation with `--validation-data`"),
    (
        &["sample-packing", "packing"],
        "samples are always packed; `--document-mask` separates documents",
    ),
    (
        &["eval-iters", "eval-only"],
        "the whole validation text is read; see `--eval-every` and `chimera eval`",
    ),
    (
        &["adapter", "lora", "lora-r", "lora-alpha", "lora-rank", "use-peft", "peft"],
        "there is no LoRA: `--init` starts from a model, and all its weights are trained",
    ),
    (
        &["load-in-8bit", "load-in-4bit", "quantize", "quantization"],
        "weights are not quantised; `--precision bf16` halves activations on CUDA",
    ),
    (&["warmup-ratio", "lr-warmup-fraction"], "`--warmup` counts steps"),
    (&["decay-lr", "lr-decay-iters"], "see `--lr-schedule` and `--decay-steps`"),
    (
        &["attention-dropout", "hidden-dropout", "resid-pdrop", "attn-pdrop", "embd-pdrop"],
        "there is one rate, `--dropout`",
    ),
    (
        &["untie-embeddings-and-output-weights", "tie-word-embeddings", "tie-embeddings"],
        "`--tied true` shares the embedding with the head, and `--tied false` does not",
    ),
    (
        &["swiglu", "normalization", "position-embedding-type", "use-rotary-position-embeddings"],
        "the architecture is `--model`: llama has rotary positions, RMS norms and a gated MLP",
    ),
    (
        &["model-type", "model-name", "flavor"],
        "choose `--preset`, or `--init` with a model's folder",
    ),
    (&["config-file", "config-path"], "a TOML file of settings is `--config`"),
    (&["num-workers", "dataloader-num-workers"], "data is read without workers: leave it out"),
    (
        &["debug", "log-level"],
        "`--verbose` prints every step, and `--log` writes a file for each rank",
    ),
];

/// Returns advice for a name of an option that does not exist here.
pub fn absent(name: &str) -> Option<&'static str> {
    ABSENT.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layers, OPTIONS};

    #[test]
    fn what_is_no_option_says_what_to_do() {
        for (words, hint) in [
            ("--tp 2", "no tensor parallelism"),
            ("--tensor-model-parallel-size 2", "no tensor parallelism"),
            ("--global-batch-size 512", "choose these"),
            ("--batch-size 4", "choose these"),
            ("--epochs 3", "choose `steps`"),
            ("--gpus 2", "mpirun or srun"),
            ("--bf16", "choose `precision bf16`"),
            ("--checkpoint x", "`save-every` saves checkpoints"),
        ] {
            let refusal = Layers::parse(words).unwrap_err().to_string();
            assert!(refusal.contains(hint), "{refusal}");
        }
    }

    #[test]
    fn advice_names_options_that_exist() {
        const OF_THE_COMMAND: [&str; 3] = ["config", "verbose", "tokenizer"];
        for (_, hint) in ABSENT {
            for option in hint.split("--").skip(1) {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let name = option.split(|c| !is_name(c)).next().unwrap_or_default();
                let is_known = OPTIONS.iter().any(|option| option.name == name);
                assert!(is_known || OF_THE_COMMAND.contains(&name), "{hint}: {name}");
            }
        }
    }
}

//! Mistaken command lines, and words of other programs, with the tip for each.

use crate::command::chimera;

/// Returns the tip of a refused command line.
fn tip(line: &str) -> String {
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}");
    let tip = ran.stderr.lines().find_map(|line| line.strip_prefix("  tip: "));
    tip.unwrap_or_default().to_string()
}

const GPUS: &str =
    "'--width' * '--depth' ranks are threads, or processes that mpirun or srun starts";
const ZERO: &str =
    "there is no DeepSpeed: '--zero' 1 to 3 are ZeRO stages, and '--depth' divides the weights";
const METRICS: &str = "metrics go to '--tensorboard', '--prometheus' or the file of '--metrics'";
const BUILT_IN: &str = "kernels are built in: leave it out";
const NO_TENSORS: &str = "there is no tensor parallelism: cut the model by layers, with '--depth'";

#[test]
fn a_tip_says_what_a_word_means_here() {
    for (line, expected) in [
        // HF Trainer and Accelerate.
        (
            "train --num-train-epochs 3",
            "choose '--steps'; a step has '--width' * '--micro-batches' * '--micro-batch-size' samples",
        ),
        ("train --gradient-checkpointing", "choose '--recompute full', or '--recompute selective'"),
        ("train --bf16", "choose '--precision bf16'"),
        ("train --fp16", "there is no fp16: choose '--precision bf16' or f32"),
        (
            "train --fsdp full_shard",
            "weights are sharded by stages: cut the model with '--depth', and shard weights, gradients and the optimizer with '--zero 3'",
        ),
        ("train --deepspeed ds.json", ZERO),
        ("train --warmup-ratio 0.1", "'--warmup' counts steps"),
        ("train --report-to wandb", METRICS),
        ("train --num-processes 8", GPUS),
        ("train --multi-gpu", GPUS),
        ("train --torch-compile", BUILT_IN),
        // DeepSpeed.
        ("train --zero-stage 1", ZERO),
        ("train --deepspeed-config ds.json", ZERO),
        (
            "train --train-batch-size 512",
            "the global batch is '--width' * '--micro-batches' * '--micro-batch-size': choose these",
        ),
        // axolotl and litgpt.
        (
            "train --use-peft",
            "'--init' starts from a model, and '--lora' trains new adapters of it",
        ),
        (
            "train --sample-packing",
            "samples are always packed; '--document-mask' separates documents",
        ),
        (
            "train --load-in-8bit",
            "'--frozen-weights' holds frozen layers in int8 or nf4, for adapters of '--lora'",
        ),
        ("train --val-set-size 0.1", "name files for validation with '--validation-data'"),
        ("train --train.micro_batch_size 4", "did you mean '--micro-batch-size'?"),
        ("train --devices 8", GPUS),
        // Megatron.
        (
            "train --load checkpoint",
            "'--resume' continues a run from a checkpoint, and '--init' starts from a model",
        ),
        ("train --tensor-model-parallel-size 2", NO_TENSORS),
        (
            "train --num-layers-per-virtual-pipeline-stage 2",
            "stages per worker are '--chunks', with '--schedule interleaved'",
        ),
        ("train --recompute-activations", "choose '--recompute full', or '--recompute selective'"),
        ("train --use-flash-attn", BUILT_IN),
        (
            "train --tokenizer-type GPT2BPETokenizer",
            "make tokens of the text first, with 'chimera prepare --tokenizer', and name its file with '--data'",
        ),
        (
            "train --swiglu",
            "the architecture is '--model': llama has rotary positions, RMS norms and a gated MLP",
        ),
        // torchtitan.
        ("train --tp 2", NO_TENSORS),
        (
            "train --cp 2",
            "there is no context parallelism; '--schedule seq1f1b --slices' pipelines slices of samples",
        ),
        ("train --vp 2", "stages per worker are '--chunks', with '--schedule interleaved'"),
        ("train --parallelism.pipeline_parallel_degree 4", "did you mean '--depth'?"),
        ("train --training.steps 10", "did you mean '--steps'?"),
        (
            "train --activation_checkpoint.mode selective",
            "choose '--recompute full', or '--recompute selective'",
        ),
        ("train --compile.enable", BUILT_IN),
        // nanoGPT.
        ("train --compile", BUILT_IN),
        ("train --wandb", METRICS),
        ("train --wandb-log", METRICS),
        (
            "train --init-from gpt2",
            "'--resume' continues a run from a checkpoint, and '--init' starts from a model",
        ),
        (
            "train --eval-iters 20",
            "the whole validation text is read; see '--eval-every' and 'chimera eval'",
        ),
        // Others of `train`.
        (
            "train --tokenizer gpt2",
            "make tokens of the text first, with 'chimera prepare --tokenizer', and name its file with '--data'",
        ),
        ("train --gpus 8", GPUS),
        (
            "train --epochs 3",
            "choose '--steps'; a step has '--width' * '--micro-batches' * '--micro-batch-size' samples",
        ),
        ("train run.toml", "did you mean '--config run.toml'?"),
        ("train --use-dora", "'--dora true' trains magnitudes beside the adapters of '--lora'"),
        (
            "train --save-strategy epoch",
            "'--save-every', '--eval-every' and '--log-every' count steps",
        ),
        ("train --output x", "did you mean '--out'?"),
        ("train zb-v", "did you mean '--schedule zb-v'?"),
        ("train book.txt", "did you mean '--data book.txt'?"),
        ("train --dept 4", "did you mean '--depth'?"),
        ("train --scheduel gems", "did you mean '--schedule'?"),
        ("train --micro-batch 8", "did you mean '--micro-batches'?"),
        ("train --weigth-decay 0.1", "did you mean '--weight-decay'?"),
        // Other commands.
        ("plan --gpus 8", "did you mean '--ranks'?"),
        (
            "plan --nodes 2",
            "'--ranks' is the number of all ranks, and '--ranks-per-node' those of a node",
        ),
        ("plan --gpu h100", "did you mean '--hardware'?"),
        ("plan h100", "did you mean '--hardware h100'?"),
        ("plan --global-batch-size 64", "did you mean '--batch'?"),
        ("generate \"hi there\"", "did you mean '--prompt \"hi there\"'?"),
        ("generate --max-new-tokens 5", "did you mean '--tokens'?"),
        ("generate --num-samples 2", "give '--prompt' several times"),
        ("generate --do-sample", "'--temperature 0' takes the likeliest token each time"),
        ("eval test.txt", "did you mean '--data test.txt'?"),
        (
            "eval --tasks hellaswag",
            "there are no benchmarks: a model is evaluated on the text of '--data'",
        ),
        ("plan llama3-8b", "did you mean '--preset llama3-8b'?"),
        ("profile --output p.json", "did you mean '--out'?"),
        ("schedule show 1f1b --png x.png", "did you mean '--out'? Its ending is the format"),
        ("eval --seq-len 64", "did you mean '--context'?"),
        ("prepare book.txt --output b.bin", "did you mean '--out'?"),
        ("simulate 1f1b --gpus 4", "did you mean '--depth'?"),
        ("simulate 1f1b --memory-limit 4", "did you mean '--memory-cap'?"),
        // Commands.
        (
            "run",
            "training starts with 'chimera train', and text is generated by 'chimera generate'",
        ),
        ("explore", "schedules are explored in a browser by 'chimera schedule explore --open'"),
        ("version", "the version is printed by 'chimera --version'"),
        ("sample", "text is generated by 'chimera generate'"),
        (
            "convert",
            "a trained model is written for Hugging Face by 'chimera export', and 'chimera train --init DIR' reads one",
        ),
        ("finetune", "fine-tuning is 'chimera train --init DIR --data FILE'"),
        ("evaluate", "a model is evaluated by 'chimera eval'"),
        ("tokenize", "text is turned into token ids by 'chimera prepare'"),
        (
            "download gpt2",
            "a model of a hub is fetched by its name: 'chimera train --init org/name'",
        ),
        (
            "compare",
            "schedules are compared by 'chimera schedule compare', traces by 'chimera trace compare'",
        ),
        ("trian", "did you mean 'train'?"),
        ("simulat", "did you mean 'simulate'?"),
        ("schedule draw", "did you mean 'show'?"),
        ("schedule chekc", "did you mean 'check'?"),
        ("schedule simulate", "a schedule is simulated by 'chimera simulate'"),
        ("checkpoint list", "did you mean 'ls'?"),
        ("config validate", "did you mean 'check'?"),
    ] {
        assert_eq!(tip(line), expected, "{line}");
    }
}

/// Silence is better than a tip that means something else.
#[test]
fn words_without_a_meaning_here_have_no_tip() {
    for line in [
        "train --zzz 3",
        "train --sequence-classifier 3",
        "train --wandb.mode offline",
        "simulate --steps 4",
        "schedule show 1f1b --save-every 3",
        "eval --epochs 3",
        "frobnicate",
    ] {
        assert_eq!(tip(line), "", "{line}");
    }
}

/// These are options here, with the same meaning.
#[test]
fn names_of_other_programs_are_taken() {
    for (line, own) in [
        ("--save-steps 50", "save-every = 50"),
        ("--eval-steps 50", "eval-every = 50"),
        ("--logging-steps 5", "log-every = 5"),
        ("--log-interval 5", "log-every = 5"),
        ("--log-every 5", "log-every = 5"),
        ("--output-dir runs/x", "out = \"runs/x\""),
        ("--per-device-train-batch-size 2", "micro-batch-size = 2"),
        ("--train-micro-batch-size-per-gpu 2", "micro-batch-size = 2"),
        ("--max-grad-norm 2", "clip = 2.0"),
        ("--lr-scheduler-type linear", "lr-schedule = \"linear\""),
        ("--save-total-limit 3", "keep = 3"),
        ("--pipeline-parallel-schedule 1F1B", "schedule = \"1f1b\""),
        ("-D 2 -N 4", "depth = 2"),
        ("-s gpipe -n 20 -o runs/y", "schedule = \"gpipe\""),
    ] {
        let ran = chimera(&format!("config show {line}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
        assert!(ran.stdout.contains(own), "{line}: {}", ran.stdout);
    }
}

#[test]
fn values_of_other_programs_have_tips() {
    for (line, tip) in [
        ("train --optimizer adam", "`optimizer` is \"adam\": did you mean `adamw`?"),
        ("train --optim adamw_torch", "`optimizer` is \"adamw_torch\": did you mean `adamw`?"),
        ("train --lr-schedule cos", "`lr-schedule` is \"cos\": did you mean `cosine`?"),
        ("train --preset gpt2", "`preset` is \"gpt2\": did you mean `gpt2-124m`?"),
        ("train --preset gpt2-medium", "`preset` is \"gpt2-medium\": did you mean `gpt2-355m`?"),
        ("train --dtype bfloat16", "`precision` is \"bfloat16\": did you mean `bf16`?"),
        (
            "train --mixed-precision fp16",
            "`precision` is \"fp16\": there is no such format here: choose bf16 or f32",
        ),
        ("train --device gpu", "`device` is \"gpu\": did you mean `cuda`?"),
        (
            "train --schedule pipedream-flush",
            "`schedule` is \"pipedream-flush\": did you mean `1f1b`?",
        ),
        ("simulate pipedream-flush", "unknown schedule `pipedream-flush`: did you mean `1f1b`? "),
        ("simulate 1f1b --recompute block", "`block`: did you mean `full`?"),
    ] {
        let ran = chimera(line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}");
        assert!(ran.stderr.contains(tip), "{line}: {}", ran.stderr);
    }
}

#[test]
fn the_usage_names_no_option_that_was_only_similar() {
    let ran = chimera("train --trace-speed 3");
    assert!(ran.stderr.contains("Usage: chimera train [OPTIONS]\n"), "{}", ran.stderr);
}

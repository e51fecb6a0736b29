//! Options of other programs that mean another option of a certain command.

/// Names with a tip, by command.
const OPTIONS: &[(&str, &[(&[&str], &str)])] = &[
    (
        "train",
        &[
            (&["plan", "auto-parallel"], "'chimera plan' chooses the configuration"),
            (&["prompt", "start"], "'chimera generate --prompt' continues a text"),
            (
                &["memory", "memory-limit"],
                "the limits are '--rank-memory', in GiB, and '--memory-cap', in micro-batches",
            ),
        ],
    ),
    (
        "generate",
        &[
            (
                &[
                    "max-new-tokens",
                    "max-tokens",
                    "max-length",
                    "n-predict",
                    "num-tokens",
                    "length",
                ],
                "did you mean '--tokens'?",
            ),
            (&["text", "input", "start", "instruction"], "did you mean '--prompt'?"),
            (
                &[
                    "checkpoint",
                    "checkpoint-dir",
                    "ckpt",
                    "model-name-or-path",
                    "model-path",
                    "out-dir",
                    "run",
                ],
                "did you mean '--model'?",
            ),
            (
                &["num-samples", "num-return-sequences", "batch-size"],
                "give '--prompt' several times",
            ),
            (&["do-sample", "greedy"], "'--temperature 0' takes the likeliest token each time"),
            (
                &["num-beams", "repetition-penalty"],
                "tokens are sampled with '--temperature', '--top-k' and '--top-p'",
            ),
            (&["stop-sequences", "stop-strings", "eos-token"], "did you mean '--stop'?"),
            (&["dtype", "precision"], "models run in f32: leave it out"),
        ],
    ),
    (
        "eval",
        &[
            (
                &[
                    "checkpoint",
                    "checkpoint-dir",
                    "ckpt",
                    "model-name-or-path",
                    "model-path",
                    "out-dir",
                    "run",
                ],
                "did you mean '--model'?",
            ),
            (&["dataset", "text", "file", "input", "tasks"], "did you mean '--data'?"),
            (
                &["seq-len", "sequence", "max-seq-length", "block-size", "max-length"],
                "did you mean '--context'?",
            ),
        ],
    ),
    (
        "plan",
        &[
            (
                &[
                    "gpus",
                    "num-gpus",
                    "n-gpus",
                    "world-size",
                    "nproc",
                    "num-processes",
                    "devices",
                    "workers",
                    "nproc-per-node",
                ],
                "did you mean '--ranks'?",
            ),
            (
                &["nodes", "num-nodes", "nnodes"],
                "'--ranks' is the number of all ranks, and '--ranks-per-node' those of a node",
            ),
            (&["gpus-per-node"], "did you mean '--ranks-per-node'?"),
            (&["global-batch-size", "batch-size", "train-batch-size"], "did you mean '--batch'?"),
            (&["gpu", "gpu-type", "device-type", "accelerator"], "did you mean '--hardware'?"),
            (&["gpu-memory", "vram", "mem"], "did you mean '--memory'?"),
            (&["peak-tflops", "tflops", "mfu"], "'--flops' is the FLOP/s that a rank reaches"),
            (
                &["bandwidth", "latency", "nvlink", "infiniband", "network-bandwidth"],
                "links are '--inside' and '--between'",
            ),
        ],
    ),
    (
        "simulate",
        &[
            (&["memory-limit", "max-memory"], "did you mean '--memory-cap'?"),
            (&["stages", "workers", "gpus", "ranks"], "did you mean '--depth'?"),
            (&["bandwidth", "latency"], "links are '--inside' and '--between'"),
        ],
    ),
    (
        "prepare",
        &[
            (&["output", "output-prefix", "destination", "output-path"], "did you mean '--out'?"),
            (
                &["input", "data", "text"],
                "texts are given without an option: 'chimera prepare TEXT… --out FILE'",
            ),
            (&["json-keys", "text-column", "text-field", "key"], "did you mean '--field'?"),
            (&["append-eod", "eos-token", "eod"], "did you mean '--end-of-text'?"),
        ],
    ),
    ("export", &[(&["output", "output-dir", "output-path", "save"], "did you mean '--out'?")]),
    (
        "slurm",
        &[
            (&["config"], "the file is given without an option: 'chimera slurm run.toml'"),
            (
                &["ntasks", "gpus", "ranks"],
                "ranks are 'width' * 'depth' in the file; see '--gpus-per-rank'",
            ),
        ],
    ),
];

/// Returns the tip for an option of another program.
pub(super) fn of_option(path: &str, name: &str) -> Option<&'static str> {
    let (_, options) = OPTIONS.iter().find(|(command, _)| *command == path)?;
    options.iter().find(|(names, _)| names.contains(&name)).map(|(_, tip)| *tip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::help::command;

    #[test]
    fn tips_are_for_options_that_do_not_exist() {
        let root = command();
        for (path, options) in OPTIONS {
            let command = root.find_subcommand(path).expect("a command");
            for name in options.iter().flat_map(|(names, _)| *names) {
                let longs =
                    command.get_arguments().filter_map(clap::Arg::get_long_and_visible_aliases);
                let is_there = longs.flatten().any(|long| long == *name);
                assert!(!is_there, "{path}: {name}");
            }
        }
    }
}

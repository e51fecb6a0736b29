//! The options that `-h` lists: those that are used most, each with a line of its own. `--help`
//! lists all options, with the words of the table of options and of each command.

/// Identifiers of arguments, each with its line.
type BriefLines = &'static [(&'static str, &'static str)];

/// The schedule by position.
const NAME: BriefLines = &[("name", "Schedule by name, or a .json or .csv file")];
/// The shape of a schedule.
const SHAPE: BriefLines = &[
    ("depth", "Workers, D"),
    ("micro-batches", "Micro-batches of a step, N"),
    ("pipes", "Pipes of chimera, 2f"),
    ("chunks", "Stages per worker of interleaved, v"),
    ("scaling", "direct, doubling, halving or auto"),
    ("window", "Steps between flushes, T"),
];
/// The passes over a schedule.
const PASSES: BriefLines = &[
    ("recompute", "none, full, selective or auto"),
    ("split-backward", "Split backwards into two halves"),
    ("bpipe", "Park activations on late workers"),
    ("offload", "Move activations to host memory"),
];
/// The times of ops, and the limit on memory.
const COSTS: BriefLines = &[
    ("forward", "Time of a forward, or one per stage"),
    ("backward", "Time of a backward"),
    ("message", "Time of a message between workers"),
    ("memory-cap", "Limit on activations, in micro-batches"),
];
/// The links between ranks.
const LINKS: BriefLines = &[
    ("ranks_per_node", "Ranks of a node"),
    ("inside", "Link in a node, e.g. 5us,300GB/s"),
    ("between", "Link between nodes"),
];
/// The options of every training.
const TRAINING: BriefLines = &[
    ("config", "TOML file of settings"),
    ("data", "Training text, or token ids"),
    ("schedule", "Schedule by name, or auto"),
    ("depth", "Workers per pipeline, D"),
    ("width", "Pipelines side by side, W"),
    ("micro-batches", "Micro-batches of a step, N"),
    ("micro-batch-size", "Samples per micro-batch, B"),
    ("recompute", "none, full, selective or auto"),
    ("preset", "Model by name: tiny, gpt2-124m, …"),
    ("init", "Model to start from"),
    ("layers", "Transformer layers"),
    ("hidden", "Features per token"),
    ("heads", "Attention heads"),
    ("context", "Maximum tokens per sample"),
    ("steps", "Optimizer steps"),
    ("optimizer", "adamw, lamb, sgd, muon or kfac"),
    ("lr", "Peak learning rate"),
    ("seed", "Random seed"),
    ("device", "cpu, cuda, wgpu, or one per worker"),
    ("precision", "f32, bf16 or tf32"),
    ("threads", "CPU threads per worker"),
];
/// The files of a training, in addition.
const FILES: BriefLines = &[
    ("out", "Directory of the run"),
    ("eval-every", "Steps between validations"),
    ("log-every", "Steps between printed lines"),
    ("trace", "File for a trace of all workers"),
    ("save", "Directory for the weights"),
    ("save-every", "Steps between checkpoints"),
    ("resume", "Checkpoint, or auto"),
];
const JSON: (&str, &str) = ("json", "Print JSON");
const OUT: (&str, &str) = ("out", "File, whose ending is the format");

/// The lines of each command by its path.
const COMMANDS: &[(&str, &[BriefLines])] = &[
    (
        "train",
        &[
            TRAINING,
            FILES,
            &[
                ("quiet", "Print only warnings and errors"),
                ("verbose", "Print a line for every step"),
                ("json", "Print a summary as JSON"),
            ],
        ],
    ),
    (
        "top",
        &[&[
            ("run", "Directory of the run; the newest if not given"),
            ("once", "Print the picture once as text"),
        ]],
    ),
    (
        "report",
        &[&[
            ("runs", "Directories of runs to describe or compare [default: the newest]"),
            ("out", "File for the page"),
        ]],
    ),
    (
        "generate",
        &[&[
            ("model", "Folder of the model; the newest if not given"),
            ("prompts", "Text to continue; may be repeated"),
            ("tokenizer", "bytes, gpt2, ids or a tokenizer.json"),
            ("tokens", "Maximum new tokens"),
            ("temperature", "Sampling temperature; 0 is greedy"),
            ("top_k", "Sample from the K likeliest tokens"),
            ("top_p", "Sample from a share P of probability"),
            ("stop", "End before this string"),
            ("seed", "Random seed"),
            ("device", "cpu, cuda or wgpu"),
            JSON,
        ]],
    ),
    (
        "eval",
        &[&[
            ("model", "Folder of the model; the newest if not given"),
            ("data", "Text, or files of token ids"),
            ("context", "Tokens of a window"),
            ("stride", "Tokens from one window to the next"),
            ("device", "cpu, cuda or wgpu"),
            JSON,
        ]],
    ),
    (
        "export",
        &[&[
            ("model", "Folder of the model; the newest if not given"),
            ("format", "Format of the model"),
            ("out", "Folder to write into"),
        ]],
    ),
    (
        "prepare",
        &[&[
            ("texts", "Text files, folders or .jsonl files"),
            ("tokenizer", "bytes, gpt2 or a tokenizer.json"),
            ("field", "Field of .jsonl lines"),
            ("prompt_field", "Field with a prompt"),
            ("end_of_text", "Token after each document"),
            ("out", "File, .bin or .u32.bin"),
        ]],
    ),
    ("schedule list", &[&[JSON]]),
    ("schedule show", &[NAME, SHAPE, PASSES, COSTS, &[("format", "text, svg or json"), OUT, JSON]]),
    (
        "schedule check",
        &[
            &[("file", "Timetable, .json or PyTorch's .csv")],
            PASSES,
            COSTS,
            &[("one_order", "Prove one order of all messages"), JSON],
        ],
    ),
    (
        "schedule compare",
        &[
            &[("names", "Schedules, each perhaps with options, or files")],
            SHAPE,
            PASSES,
            COSTS,
            &[("format", "text, svg or json"), OUT, JSON],
        ],
    ),
    (
        "schedule export",
        &[
            NAME,
            SHAPE,
            PASSES,
            COSTS,
            &[("format", "json, pytorch-csv, chrome, svg, …"), OUT, ("pipe", "Pipe to write")],
        ],
    ),
    (
        "schedule import",
        &[
            &[
                ("file", "Timetable, .json or PyTorch's .csv"),
                ("format", "json, pytorch-csv, chrome, svg, …"),
                OUT,
                ("run", "Train with it, with these options"),
            ],
            PASSES,
            COSTS,
        ],
    ),
    ("schedule gallery", &[&[("out", "Folder, or an .html page")]]),
    (
        "simulate",
        &[
            NAME,
            SHAPE,
            PASSES,
            COSTS,
            LINKS,
            &[
                ("width", "Pipelines side by side, W"),
                ("preset", "Model by name, with --profile"),
                ("profile", "Measured times of this machine"),
                ("gradient_bytes", "Bytes of a stage's gradients"),
                ("execute", "Also run it, with sleeping stages"),
                ("trace", "File for a trace"),
                OUT,
                JSON,
            ],
        ],
    ),
    (
        "plan",
        &[
            &[
                ("ranks", "Ranks to use, W x D"),
                ("batch", "Samples of a step, W x N x B"),
                ("hardware", "GPU by name, e.g. h100, or a TOML file"),
                ("memory", "Memory of a rank, e.g. 80GB"),
                ("flops", "FLOP/s of a rank that are reached, e.g. 120T"),
                ("costs", "Layers of your own model, as JSON"),
                ("tokens", "Tokens to train on, e.g. 300B"),
                ("top", "Rows of the table"),
                ("out", "File for the settings, e.g. run.toml"),
                JSON,
            ],
            LINKS,
            &[
                ("config", "TOML file of settings"),
                ("profile", "Measured times of this machine"),
                ("schedule", "Schedule to keep to"),
                ("depth", "Depth to keep to"),
                ("width", "Width to keep to"),
                ("recompute", "none, full, selective or auto"),
                ("preset", "Model by name"),
                ("layers", "Transformer layers"),
                ("hidden", "Features per token"),
                ("heads", "Attention heads"),
                ("sequence", "Tokens per sample"),
                ("precision", "f32, bf16 or tf32"),
                ("shard-optimizer", "Shard the optimizer"),
            ],
        ],
    ),
    (
        "profile",
        &[&[
            ("models", "Architecture to measure"),
            ("presets", "Models to measure, by name"),
            ("micro_batch_size", "Samples of their micro-batches"),
            ("device", "cpu, cuda or wgpu"),
            ("precision", "f32, bf16 or tf32"),
            ("threads", "Threads per worker"),
            ("time", "Seconds to measure for"),
            ("out", "File for the profile"),
        ]],
    ),
    (
        "trace compare",
        &[&[
            ("plan", "Trace of the plan"),
            ("trace", "Trace of the run"),
            ("seconds_per_unit", "Seconds of a unit of the plan"),
            JSON,
        ]],
    ),
    ("config show", &[TRAINING, FILES, &[JSON]]),
    (
        "config check",
        &[&[
            ("files", "TOML files of settings"),
            ("conflicts", "List options that exclude each other"),
        ]],
    ),
    ("checkpoint ls", &[&[("run", "Folder of the run")]]),
    ("checkpoint verify", &[&[("checkpoint", "Folder of the checkpoint")]]),
    ("checkpoint export", &[&[("checkpoint", "Folder of the checkpoint"), ("out", "New file")]]),
    (
        "comm bench",
        &[&[
            ("transport", "threads, mpi or auto"),
            ("ranks", "Ranks that are threads"),
            ("out", "File for `plan --network`"),
            JSON,
        ]],
    ),
    (
        "slurm",
        &[&[
            ("config", "TOML file of settings"),
            ("nodes", "Machines"),
            ("partition", "Partition of the cluster"),
            ("time", "Time limit of the job"),
            ("gpus_per_rank", "GPUs per rank"),
        ]],
    ),
    (
        "selftest",
        &[&[
            ("device", "cpu, cuda or wgpu"),
            ("size", "Size of the measurements"),
            ("parts", "Run only this part"),
            ("time", "Time limit in seconds"),
            ("json", "File for all findings"),
        ]],
    ),
];

/// Returns the line of `-h` for an argument of a command; `Err` if `-h` of that command lists all
/// of its arguments as they are.
pub(crate) fn line(path: &str, id: &str) -> Result<Option<&'static str>, Unlisted> {
    let (_, lines) = COMMANDS.iter().find(|(of, _)| *of == path).ok_or(Unlisted)?;
    let mut lines = lines.iter().flat_map(|lines| *lines);
    Ok(lines.find(|(of, _)| *of == id).map(|(_, line)| *line))
}

/// The command has no lines of its own.
pub(crate) struct Unlisted;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_line_is_of_an_argument() {
        let cli = Cli::command();
        for (path, lines) in COMMANDS {
            let find = |command, name| clap::Command::find_subcommand(command, name);
            let command = path.split(' ').try_fold(&cli, find).expect("a command");
            for (id, _) in lines.iter().flat_map(|lines| *lines) {
                assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{path}: {id}");
            }
        }
    }
}

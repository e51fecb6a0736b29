//! Examples for help: a few lines for each command, which a test parses.

/// Command lines, each with a description.
type Examples = &'static [(&'static str, &'static str)];

/// Examples by subcommand.
pub(crate) const EXAMPLES: &[(&str, Examples)] = &[
    (
        "train",
        &[
            ("chimera train", "a small GPT-2 on four workers"),
            (
                "chimera train --data book.txt --schedule zb-v --steps 1000 --save model",
                "your own text",
            ),
            ("chimera train --config run.toml --resume auto", "go on from the newest checkpoint"),
        ],
    ),
    (
        "top",
        &[
            ("chimera top", "the newest run"),
            ("chimera top runs/0001 --once", "what there is now, as text"),
        ],
    ),
    (
        "report",
        &[
            ("chimera report", "a page in the directory of the newest run"),
            ("chimera report runs/0001 --out run.html", "as another file"),
        ],
    ),
    (
        "generate",
        &[
            ("chimera generate --prompt \"The \"", "the newest run"),
            (
                "chimera generate --model gpt2 --prompt \"Hello\" --top-k 40",
                "a model of Hugging Face",
            ),
        ],
    ),
    (
        "eval",
        &[
            ("chimera eval --data test.txt", "the newest run on a text"),
            (
                "chimera eval --model model --data test.bin --stride 64",
                "each token from at least some before it",
            ),
        ],
    ),
    ("export", &[("chimera export --out model", "the newest run, for transformers")]),
    (
        "prepare",
        &[
            (
                "chimera prepare book.txt --tokenizer gpt2 --out book.bin",
                "GPT-2's tokens of a text",
            ),
            (
                "chimera prepare a.txt b.txt --tokenizer tokenizer.json --out ab.u32.bin",
                "with a tokenizer of your own",
            ),
        ],
    ),
    ("schedule list", &[("chimera schedule list", "names, and the papers they are from")]),
    (
        "schedule show",
        &[
            ("chimera schedule show 1f1b --depth 4 --micro-batches 8", "a drawing in text"),
            ("chimera schedule show chimera --pipes 4 --format svg", "a drawing in SVG"),
        ],
    ),
    (
        "schedule compare",
        &[
            ("chimera schedule compare --depth 8 --micro-batches 32", "all schedules"),
            ("chimera schedule compare 1f1b \"chimera --scaling halving\"", "two of them"),
        ],
    ),
    (
        "schedule check",
        &[
            ("chimera schedule check mine.json", "prove a timetable of your own"),
            (
                "chimera schedule check torch.csv --memory-cap 4",
                "of PyTorch, within a limit on memory",
            ),
        ],
    ),
    (
        "schedule export",
        &[
            ("chimera schedule export zb-v --format pytorch-csv --out zb-v.csv", "for PyTorch"),
            ("chimera schedule export chimera --format html --out step.html", "a page to look at"),
        ],
    ),
    (
        "schedule import",
        &[
            (
                "chimera schedule import torch.csv --format json --out torch.json",
                "a timetable of PyTorch as JSON",
            ),
            ("chimera schedule import torch.csv --run --data book.txt", "train with it"),
        ],
    ),
    ("schedule gallery", &[("chimera schedule gallery --out gallery", "a page of drawings")]),
    ("schedule explore", &[("chimera schedule explore --port 8000", "open what it prints")]),
    (
        "simulate",
        &[
            ("chimera simulate zb-h1 --micro-batches 16", "a step's time and memory"),
            ("chimera simulate auto --memory-cap 4", "the shortest order within a limit on memory"),
            ("chimera simulate gems --execute 0.001", "beside a run of stages that sleep"),
            (
                "chimera simulate zb-h1 --profile profile.json --preset tiny",
                "a model here, by measured times",
            ),
            (
                "chimera simulate 1f1b --width 2 --inside 5e-6,3e-12 --gradient-bytes 4e8",
                "two pipelines side by side on a network",
            ),
        ],
    ),
    (
        "plan",
        &[
            (
                "chimera plan --ranks 8 --batch 64 --hardware a100-80gb --costs layers.json",
                "a model of your own",
            ),
            ("chimera plan --ranks 4 --batch 64 --memory 8GiB --flops 5e10", "for four CPU ranks"),
            (
                "chimera plan --ranks 8 --batch 512 --memory 40GB --flops 1e14 --preset gpt2-64",
                "for eight GPUs",
            ),
            (
                "chimera plan --ranks 8 --batch 64 --memory 8GB --flops 9e12 --inside 1e-5,1e-9",
                "over a slow network",
            ),
        ],
    ),
    (
        "trace compare",
        &[("chimera trace compare plan.json run.json", "what was planned, and what was measured")],
    ),
    (
        "config show",
        &[
            ("chimera config show", "all defaults"),
            (
                "chimera config show --config run.toml --lr 1e-3",
                "a file's values, and where they come from",
            ),
        ],
    ),
    ("config check", &[("chimera config check run.toml", "whether a run would begin")]),
    ("config options", &[("chimera config options", "every key, for your notes")]),
    ("checkpoint ls", &[("chimera checkpoint ls runs/0001", "steps and sizes")]),
    (
        "checkpoint verify",
        &[(
            "chimera checkpoint verify runs/0001/checkpoints/step-00000100",
            "whether every byte is as written",
        )],
    ),
    (
        "checkpoint export",
        &[("chimera checkpoint export step-00000100 --out weights.safetensors", "weights alone")],
    ),
    (
        "comm bench",
        &[
            ("chimera comm bench", "between threads"),
            (
                "chimera comm bench --transport mpi --out network.json",
                "between processes, for `plan` and `simulate --network`",
            ),
        ],
    ),
    ("slurm", &[("chimera slurm run.toml --nodes 4 --time 12:00:00", "a script for sbatch")]),
    ("devices", &[("chimera devices", "what `--device` can name here")]),
    (
        "profile",
        &[
            ("chimera profile --out profile.json", "a grid of sizes, about two minutes"),
            ("chimera profile --preset gpt2-124m --micro-batch-size 1,4", "one model alone"),
        ],
    ),
    ("selftest", &[("chimera selftest --device cuda", "a GPU against the CPU")]),
    (
        "completions",
        &[
            (
                "chimera completions bash > ~/.local/share/bash-completion/completions/chimera",
                "for bash",
            ),
            ("chimera completions zsh > ~/.zfunc/_chimera", "for zsh"),
        ],
    ),
    ("man", &[("chimera man ~/.local/share/man/man1", "where man finds them")]),
];

/// Returns the examples of a command; for a group, the first one of each command in it.
pub(crate) fn examples(path: &str) -> Vec<(&'static str, &'static str)> {
    if let Some((_, lines)) = EXAMPLES.iter().find(|(of, _)| *of == path) {
        return lines.to_vec();
    }
    let prefix = if path.is_empty() { String::new() } else { format!("{path} ") };
    let within = EXAMPLES.iter().filter(|(of, _)| of.starts_with(&prefix));
    within.filter_map(|(_, lines)| lines.first().copied()).collect()
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::cli::help::command;

    #[test]
    fn every_example_is_a_command_line() {
        for (path, lines) in EXAMPLES {
            for (line, _) in *lines {
                assert!(line.starts_with(&format!("chimera {path}")), "{line}");
                assert!(line.len() <= 78, "{line}");
                let line = line.split(" > ").next().expect("a command");
                let words = line.split('"').enumerate().flat_map(|(nth, part)| match nth % 2 {
                    0 => part.split_whitespace().collect(),
                    _ => vec![part],
                });
                let read = command().try_get_matches_from(words);
                assert!(
                    read.is_ok(),
                    "{line}: {}",
                    read.err().map(|e| e.to_string()).unwrap_or_default()
                );
            }
        }
    }

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &Command, path: &str) {
            let path = path.trim_start();
            assert!(!examples(path).is_empty(), "{path}");
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        check(&command(), "");
    }
}

//! Examples for help: a few lines for each command, which a test reads back.

use clap::{Command, CommandFactory};

use crate::cli::Cli;

/// By subcommand: command lines, each with what it does.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
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
        "simulate",
        &[
            ("chimera simulate zb-h1 --micro-batches 16", "a step's time and memory"),
            ("chimera simulate auto --memory-cap 4", "the shortest order within a limit on memory"),
            (
                "chimera simulate 1f1b --width 2 --inside 5e-6,3e-12 --gradient-bytes 4e8",
                "two pipelines side by side on a network",
            ),
        ],
    ),
    (
        "plan",
        &[
            ("chimera plan --ranks 4 --batch 64 --memory 8GiB --flops 5e10", "for four CPU ranks"),
            (
                "chimera plan --ranks 8 --batch 512 --memory 40GiB --flops 1.2e14 --preset gpt2-1558m \
                 --inside 5e-6,3.3e-12",
                "for eight GPUs and a link between them",
            ),
        ],
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
];

/// The command with all subcommands, their help opening with examples.
pub(crate) fn command() -> Command {
    with_examples(Cli::command(), "")
}

fn with_examples(command: Command, path: &str) -> Command {
    let examples = EXAMPLES.iter().find(|(of, _)| *of == path);
    let command = match examples {
        None => command,
        Some((_, lines)) => {
            let lines = lines.iter().map(|(line, about)| format!("  {line}\n      {about}"));
            command.before_help(format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n")))
        }
    };
    command.mut_subcommands(|subcommand| {
        let path = format!("{path} {}", subcommand.get_name());
        with_examples(subcommand, path.trim_start())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_a_command_line() {
        for (path, lines) in EXAMPLES {
            for (line, _) in *lines {
                assert!(line.starts_with(&format!("chimera {path}")), "{line}");
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
    fn help_opens_with_examples() {
        let mut train = command();
        let train = train.find_subcommand_mut("train").expect("known");
        let help = train.render_help().to_string();
        assert!(help.starts_with("Examples:\n  chimera train\n"), "{help}");
        for heading in ["Schedule:", "Model:", "Optimizer:", "Checkpoints:"] {
            assert!(help.contains(&format!("\n{heading}\n")), "{heading}");
        }
    }
}

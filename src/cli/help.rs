//! Help: `-h` is a page of the most used options, `--help` has all of them, and then examples.

use clap::builder::PossibleValue;
use clap::{Arg, Command, CommandFactory};

use crate::cli::Cli;
use crate::cli::examples::own_examples;
use crate::cli::most_used::{Unlisted, line};

/// Columns of a line of `-h` beside the name of its option, on a terminal of 80 columns.
const LINE: usize = 44;
const SEE_ALL: &str = "See all options with --help";

/// Returns the command with all subcommands, as help shows it.
pub(crate) fn command() -> Command {
    with_help(Cli::command(), "")
}

fn with_help(command: Command, path: &str) -> Command {
    let command = command.mut_args(|arg| in_short(arg, path));
    let is_hidden = command.get_arguments().any(Arg::is_hide_short_help_set);
    let command = if is_hidden { command.after_help(SEE_ALL) } else { command };
    let examples = own_examples(path);
    let command = if examples.is_empty() {
        command
    } else {
        let lines = examples.iter().map(|row| format!("  {}\n      {}", row.head, row.text));
        command.after_long_help(format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n")))
    };
    command.mut_subcommands(|subcommand| {
        let path = format!("{path} {}", subcommand.get_name());
        with_help(subcommand, path.trim_start())
    })
}

/// Gives an argument its line in `-h`, or hides it there.
fn in_short(arg: Arg, path: &str) -> Arg {
    let short = match line(path, arg.get_id().as_str()) {
        Err(Unlisted) => return arg,
        Ok(None) => return arg.hide_short_help(true),
        Ok(Some(line)) => line,
    };
    let full = arg.get_long_help().or(arg.get_help()).cloned().unwrap_or_default().to_string();
    // Those of the table of options say their defaults in words.
    let default = full.rsplit_once(" [default: ").and_then(|(_, rest)| rest.strip_suffix(']'));
    let is_worth = |default: &&str| {
        path != "plan" // where options without a value are chosen
            && !["none", "false", "no limit", "0"].contains(default)
            && short.chars().count() + default.len() <= LINE - " [default: ]".len()
    };
    let short = match default.filter(is_worth) {
        Some(default) => format!("{short} [default: {default}]"),
        None => short.to_string(),
    };
    let values = listed_values(&arg);
    let arg = if values.is_empty() { arg } else { arg.hide_possible_values(true) };
    arg.long_help(full + &values).help(short)
}

/// Lists the values of an argument, each with its description, if help would list them.
fn listed_values(arg: &Arg) -> String {
    if arg.is_hide_possible_values_set() || !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_possible_values();
    if values.iter().all(|value| value.get_help().is_none()) {
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        return if names.is_empty() {
            String::new()
        } else {
            format!(" [possible values: {}]", names.join(", "))
        };
    }
    let line = |value: &PossibleValue| {
        let about = value.get_help().map(ToString::to_string).unwrap_or_default();
        format!("\n- {}: {about}", value.get_name())
    };
    format!("\n\nPossible values:{}", values.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `check` with each command and its path.
    fn each(command: &mut Command, path: &str, check: &mut impl FnMut(&mut Command, &str)) {
        check(command, path.trim_start());
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            each(sub, &path, check);
        }
    }

    fn built() -> Command {
        let mut command = command().term_width(80);
        command.build();
        command
    }

    #[test]
    fn help_fits_eighty_columns() {
        each(&mut built(), "", &mut |command, path| {
            for help in [command.render_help(), command.render_long_help()] {
                let help = help.to_string();
                let long = help.lines().find(|line| line.chars().count() > 80);
                assert!(long.is_none(), "{path}: {long:?}");
            }
        });
    }

    #[test]
    fn short_help_is_a_page_with_a_line_for_each_option() {
        each(&mut built(), "", &mut |command, path| {
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= 60, "{path}: {}\n{help}", help.lines().count());
            let is_hidden = command.get_arguments().any(Arg::is_hide_short_help_set);
            assert_eq!(help.trim_end().ends_with(SEE_ALL), is_hidden, "{path}: {help}");
            let mut options = help.lines().skip_while(|line| !line.ends_with(':'));
            let wrapped = options.find(|line| line.starts_with("        "));
            assert!(wrapped.is_none(), "{path}: {wrapped:?}\n{help}");
        });
    }

    #[test]
    fn long_help_describes_the_command_and_ends_with_examples() {
        let mut train = command();
        let train = train.find_subcommand_mut("train").expect("known");
        let help = train.render_long_help().to_string();
        assert!(
            help.starts_with("Trains a GPT-2, a Llama or a BERT through a pipeline\n"),
            "{help}"
        );
        let (options, examples) = help.split_once("\nExamples:\n").expect("examples");
        assert!(examples.starts_with("  chimera train\n"), "{examples}");
        for heading in ["Schedule:", "Model:", "Optimizer:", "Checkpoints:"] {
            assert!(options.contains(&format!("\n{heading}\n")), "{heading}");
        }
    }

    /// Help reads as a manual does: a verb or a noun first.
    #[test]
    fn no_help_begins_with_an_indirect_question() {
        each(&mut built(), "", &mut |command, path| {
            let args = command.get_arguments();
            let helps = args.flat_map(|arg| [arg.get_help(), arg.get_long_help()]);
            for help in helps.flatten().chain(command.get_about()) {
                let help = help.to_string();
                let first = help.split(' ').next().unwrap_or_default();
                assert!(
                    !["What", "Where", "How", "Which", "Whether"].contains(&first),
                    "{path}: {help}"
                );
            }
        });
    }
}

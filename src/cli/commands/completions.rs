//! `chimera completions`: shell scripts that complete commands, options and their values.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::{Arg, Args, Command, ValueHint};
use clap_complete::Shell;

use crate::cli::help::command;
use crate::cli::parts::terminal::console::print;

/// Prints completions for a shell
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<()> {
        let (mut command, mut script) = (command(), Vec::new());
        clap_complete::generate(self.shell, &mut command, "chimera", &mut script);
        let mut script = String::from_utf8_lossy(&script).into_owned();
        for words in words_or_files(&command) {
            script = with_files(self.shell, &script, &words);
        }
        match self.shell {
            Shell::Zsh => script = script.replace(ZSH_START, &format!("{ZSH_FILES}{ZSH_START}")),
            Shell::Fish => script.push_str(&fish_positionals(&command)),
            _ => {}
        }
        print(script)
    }
}

/// The start of the part of the zsh script that runs.
const ZSH_START: &str = "\nif [ \"$funcstack[1]\" = \"_chimera\" ]; then";
/// A zsh function that completes words or files.
const ZSH_FILES: &str = "
_chimera_words_or_files() {
    _alternative \"values:value:($*)\" 'files:file:_files'
}
";

/// Returns the words of each argument that may also be a file. (Bash completes files by itself if
/// no word matches.)
fn words_or_files(command: &Command) -> BTreeSet<Vec<String>> {
    let own = command.get_arguments().filter(|arg| may_be_file(arg)).map(words);
    let below = command.get_subcommands().flat_map(words_or_files);
    own.filter(|words| !words.is_empty()).chain(below).collect()
}

fn may_be_file(arg: &Arg) -> bool {
    arg.get_value_hint() == ValueHint::AnyPath
}

fn words(arg: &Arg) -> Vec<String> {
    let values = arg.get_action().takes_values().then(|| arg.get_possible_values());
    values.into_iter().flatten().map(|value| value.get_name().to_string()).collect()
}

/// Adds files to the completions of arguments with words: the generated scripts only offer one of
/// the two.
fn with_files(shell: Shell, script: &str, words: &[String]) -> String {
    match shell {
        Shell::Zsh => {
            let words = words.join(" ");
            script
                .replace(&format!(":({words})'"), &format!(":{{_chimera_words_or_files {words}}}'"))
        }
        Shell::Fish => {
            let lines: Vec<String> = words.iter().map(|word| format!("{word}\\t''")).collect();
            let words = format!("-a \"{}\"", lines.join("\n"));
            script.replace(&format!("-f {words}"), &format!("-F {words}"))
        }
        _ => script.to_string(),
    }
}

/// Lines that complete positional arguments, which fish's script lacks.
fn fish_positionals(command: &Command) -> String {
    let mut lines = String::new();
    for sub in command.get_subcommands() {
        let here = format!("__fish_chimera_using_subcommand {}", sub.get_name());
        lines.push_str(&fish_lines(sub, &here));
        for sub in sub.get_subcommands() {
            let here = format!("{here}; and __fish_seen_subcommand_from {}", sub.get_name());
            lines.push_str(&fish_lines(sub, &here));
        }
    }
    lines
}

fn fish_lines(command: &Command, here: &str) -> String {
    let line = |arg: &Arg| {
        let (words, files) = (words(arg), if may_be_file(arg) { "" } else { " -f" });
        let line = format!("complete -c chimera -n \"{here}\"{files} -a \"{}\"\n", words.join(" "));
        (!words.is_empty()).then_some(line)
    };
    command.get_positionals().filter_map(line).collect()
}

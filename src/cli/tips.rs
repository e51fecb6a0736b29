//! Tips after a mistaken command line: the meaning here of another program's word, or the
//! correction of a misspelled one. A tip names only options that the command documents.

mod commands;
mod options;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

use chimera_core::notation::alike;

use self::commands::{of_group, of_word};
use self::options::of_option;
use crate::cli::help::command;
use crate::settings::{absent, own_name};

/// Replaces the tips of an error in these words of a command line by better ones.
pub(crate) fn explained(mut error: Error, words: &[String]) -> Error {
    let mut root = command();
    root.build();
    let (command, path) = command_of(&root, words);
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else {
                return error;
            };
            // Clap adds the argument of its own tip to the usage.
            let (arg, usage) = (arg.clone(), command.clone().render_usage());
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
            match arg.strip_prefix("--") {
                Some(option) => of_unknown_option(command, &path, option),
                None if arg.starts_with('-') => None,
                None => of_word(&path, &arg),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
                return error;
            };
            of_unknown_command(command, &path, &word.clone())
        }
        _ => return error,
    };
    for kind in
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Suggested]
    {
        error.remove(kind);
    }
    if let Some(tip) = tip {
        let tips = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// Finds the command that the words name, with its path.
fn command_of<'c>(root: &'c Command, words: &[String]) -> (&'c Command, String) {
    let (mut command, mut path) = (root, Vec::new());
    for word in words.iter().skip(1).filter(|word| !word.starts_with('-')) {
        let Some(sub) = command.find_subcommand(word) else { break };
        path.push(sub.get_name());
        command = sub;
    }
    (command, path.join(" "))
}

/// Returns a tip for an option that the command does not have.
fn of_unknown_option(command: &Command, path: &str, option: &str) -> Option<String> {
    let option = option.to_ascii_lowercase().replace('_', "-");
    // torchtitan and litgpt put a section before the name, which may change its meaning.
    let section = option.rsplit_once('.');
    let names = [Some(option.as_str()), section.map(|(_, name)| name)];
    let known = names.into_iter().flatten().find_map(|name| of_known_option(command, path, name));
    known.or_else(|| {
        let similar = alike(&option, documented(command)).filter(|_| section.is_none())?;
        Some(format!("did you mean '--{similar}'?"))
    })
}

/// Returns a tip for an option whose meaning in other programs is known.
fn of_known_option(command: &Command, path: &str, name: &str) -> Option<String> {
    if let Some(tip) = of_option(path, name) {
        return Some(tip.to_string());
    }
    let has = |name: &str| documented(command).any(|long| long == name);
    if let Some(advice) = absent(name).filter(|advice| names_in(advice).all(has)) {
        return Some(advice.replace('`', "'"));
    }
    let own = own_name(name).or_else(|| documented(command).find(|own| *own == name));
    own.filter(|own| has(own)).map(|own| format!("did you mean '--{own}'?"))
}

/// Lists the documented options of a command.
fn documented(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long)
}

/// Lists the options that a sentence names, but for those of another command that it names.
fn names_in(advice: &str) -> impl Iterator<Item = &str> {
    let quoted = advice.split('`').skip(1).step_by(2);
    let own = quoted.filter(|words| !words.starts_with("chimera "));
    own.flat_map(|words| words.split("--").skip(1))
        .map(|option| option.split([' ', '=']).next().unwrap_or_default())
}

/// Returns a tip for a subcommand that does not exist.
fn of_unknown_command(command: &Command, path: &str, word: &str) -> Option<String> {
    let word = word.to_ascii_lowercase().replace('_', "-");
    if let Some(tip) = of_group(path, &word) {
        return Some(tip.to_string());
    }
    let names = command.get_subcommands().map(Command::get_name);
    alike(&word, names).map(|name| format!("did you mean '{name}'?"))
}

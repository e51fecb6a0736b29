//! Words for commands, and words where options belong.

use std::path::Path;

use chimera_core::model::Preset;

use crate::plan::Hardware;
use crate::settings::schedules::Named;
use crate::settings::{TextRow, text_rows};

/// Returns the names of other programs for subcommands, by group.
fn rows() -> impl Iterator<Item = TextRow> {
    text_rows(include_str!("commands.txt"))
}

/// Returns a tip for a word of another program in a group of commands.
pub(super) fn of_group(path: &str, word: &str) -> Option<&'static str> {
    rows().find(|row| row.section == path && row.names(word)).map(|row| row.text)
}

/// Returns a tip for a word where the command takes none.
pub(super) fn of_word(path: &str, word: &str) -> Option<String> {
    let is_toml = Path::new(word).extension().is_some_and(|ending| ending == "toml");
    let is_schedule = word.parse::<Named>().is_ok();
    let option = match path {
        "train" | "plan" | "config show" if is_toml => "config",
        "train" | "plan" if is_schedule => "schedule",
        "train" | "plan" if Preset::named(word).is_some() => "preset",
        "train" => "data",
        "plan" if Hardware::names().contains(&word) => "hardware",
        "generate" => "prompt",
        "eval" => "data",
        _ => return None,
    };
    let word = if word.contains(' ') { format!("\"{word}\"") } else { word.to_string() };
    Some(format!("did you mean '--{option} {word}'?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::help::command;

    #[test]
    fn tips_are_for_words_that_are_no_commands() {
        let root = command();
        for TextRow { section, head, .. } in rows() {
            let group = section.split(' ').filter(|name| !name.is_empty());
            let group =
                group.fold(&root, |command, name| command.find_subcommand(name).expect("a group"));
            for word in head.split(' ') {
                assert!(group.find_subcommand(word).is_none(), "{word}");
            }
        }
    }
}

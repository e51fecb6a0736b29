//! Examples for help: a few lines for each command, which a test parses.

use crate::settings::{TextRow, text_rows};

/// Returns the examples of all subcommands: command lines, each with a description.
fn rows() -> impl Iterator<Item = TextRow> {
    text_rows(include_str!("examples.txt"))
}

/// Returns the examples of a command itself.
pub(crate) fn own_examples(path: &str) -> Vec<TextRow> {
    rows().filter(|row| row.section == path).collect()
}

/// Returns the examples of a command; for a group, the first one of each command in it.
pub(crate) fn examples(path: &str) -> Vec<TextRow> {
    let own = own_examples(path);
    if !own.is_empty() {
        return own;
    }
    let prefix = if path.is_empty() { String::new() } else { format!("{path} ") };
    let mut within: Vec<_> = rows().filter(|row| row.section.starts_with(&prefix)).collect();
    within.dedup_by_key(|row| row.section);
    within
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::cli::help::command;

    #[test]
    fn every_example_is_a_command_line() {
        for TextRow { section: path, head: line, .. } in rows() {
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

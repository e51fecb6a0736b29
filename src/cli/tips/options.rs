//! Options of other programs that mean another option of a certain command.

use crate::settings::{TextRow, text_rows};

/// Returns the names with a tip, by command.
fn rows() -> impl Iterator<Item = TextRow> {
    text_rows(include_str!("options.txt"))
}

/// Returns the tip for an option of another program.
pub(super) fn of_option(path: &str, name: &str) -> Option<&'static str> {
    rows().find(|row| row.section == path && row.names(name)).map(|row| row.text)
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::cli::help::command;

    #[test]
    fn tips_are_for_options_that_do_not_exist() {
        let root = command();
        for TextRow { section: path, head, .. } in rows() {
            let find = |command, name| Command::find_subcommand(command, name).expect("a command");
            let command = path.split(' ').fold(&root, find);
            for name in head.split(' ') {
                let longs =
                    command.get_arguments().filter_map(clap::Arg::get_long_and_visible_aliases);
                let is_there = longs.flatten().any(|long| long == name);
                assert!(!is_there, "{path}: {name}");
            }
        }
    }
}

//! The options that `-h` lists: those that are used most, each with a line of its own. `--help`
//! lists all options, with the words of the table of options and of each command.

/// Lines by the path of a command, or by the name of a group. A line is the identifier of an
/// argument and its words, or a group, whose lines are put in its place.
const LINES: &str = include_str!("most_used.txt");

/// Returns the arguments of a command or a group, each with its line.
fn lines(section: &str) -> Option<Vec<(&'static str, &'static str)>> {
    let heading = format!("[{section}]");
    let mut text = LINES.lines().skip_while(|line| *line != heading);
    text.next()?;
    let mut lines = Vec::new();
    for line in text.take_while(|line| !line.is_empty()) {
        match line.split_once(": ") {
            Some(line) => lines.push(line),
            None => lines.extend(self::lines(line)?),
        }
    }
    Some(lines)
}

/// Returns the line of `-h` for an argument of a command; `Err` if `-h` of that command lists all
/// of its arguments as they are.
pub(crate) fn line(path: &str, id: &str) -> Result<Option<&'static str>, Unlisted> {
    let mut lines = lines(path).ok_or(Unlisted)?.into_iter();
    Ok(lines.find(|(of, _)| *of == id).map(|(_, line)| line))
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
        let headings = LINES.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
        for path in headings.filter(|path| !path.starts_with(char::is_uppercase)) {
            let find = |command, name| clap::Command::find_subcommand(command, name);
            let command = path.split(' ').try_fold(&cli, find).expect("a command");
            for (id, _) in lines(path).expect("all groups exist") {
                assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{path}: {id}");
            }
        }
    }
}

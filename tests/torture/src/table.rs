//! The commands and their options, as the zsh completions list them. So new options are drawn
//! without a change here.

use anyhow::{Result, ensure};

/// A command with its options.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct CommandRow {
    /// Its words, such as `schedule show`.
    pub(super) name: String,
    pub(super) options: Vec<OptionRow>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct OptionRow {
    /// Its name, with the dashes.
    pub(super) name: String,
    pub(super) takes: Takes,
}

/// The value that an option takes.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Takes {
    Nothing,
    /// A file or a folder.
    Place,
    /// One of these words, and sometimes others.
    Words(Vec<String>),
    Other,
}

/// Reads the output of `chimera completions zsh`.
pub(super) fn read(completions: &str) -> Result<Vec<CommandRow>> {
    let mut commands: Vec<CommandRow> = Vec::new();
    // For each open `case`: the commands above the ones that it lists.
    let mut above: Vec<String> = vec![String::new()];
    let (mut command, mut next) = (String::new(), String::new());
    let mut lines = completions.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let option = line.trim_start_matches(['\'', '*']);
        if let Some((_, rest)) =
            line.split_once(":chimera").filter(|_| line.ends_with("$line[1]:\""))
        {
            next = rest.split_once("command-").map_or("", |(above, _)| above).replace('-', " ");
        } else if line == "case $state in" {
            above.push(above.last().cloned().unwrap_or_default());
        } else if line == "case $line[1] in" {
            above.push(next.trim().to_owned());
        } else if line == "esac" {
            above.pop();
        } else if let Some(name) = line.strip_prefix('(').and_then(|line| line.strip_suffix(')')) {
            let above = above.last().map_or("", String::as_str);
            command = format!("{above} {name}").trim().to_owned();
        } else if line.starts_with('\'') && option.starts_with("--") && !command.is_empty() {
            let mut text = option.to_owned();
            while !text.ends_with("' \\") {
                let Some(more) = lines.next() else { break };
                text = format!("{text}\n{more}");
            }
            let row = option_row(&text);
            match commands.iter_mut().find(|known| known.name == command) {
                Some(known) => known.options.push(row),
                None => commands.push(CommandRow { name: command.clone(), options: vec![row] }),
            }
        }
    }
    let names: Vec<String> = commands.iter().map(|command| format!("{} ", command.name)).collect();
    let is_group = |name: &str| {
        names.iter().any(|other| other.starts_with(&format!("{name} ")) && other.trim_end() != name)
    };
    commands.retain(|command| {
        !command.name.split(' ').any(|word| word == "help") && !is_group(&command.name)
    });
    commands
        .iter_mut()
        .for_each(|command| command.options.retain(|option| option.name != "--help"));
    let n_options: usize = commands.iter().map(|command| command.options.len()).sum();
    ensure!(commands.len() > 10 && n_options > 100, "the completions list {n_options} options");
    Ok(commands)
}

/// Parses `--name[help]`, or `--name=[help]:VALUE:words`.
fn option_row(text: &str) -> OptionRow {
    let name: String = text.chars().take_while(|c| *c == '-' || c.is_alphanumeric()).collect();
    let help = text.char_indices().scan(' ', |before, (at, now)| {
        let is_end = now == ']' && *before != '\\';
        *before = now;
        Some((at, is_end))
    });
    let end = help.into_iter().find(|(_, is_end)| *is_end).map_or(text.len(), |(at, _)| at + 1);
    let value = text[end..].trim_end_matches("' \\").trim_start_matches(':');
    let (_, kind) = value.split_once(':').unwrap_or_default();
    let takes = match kind {
        _ if value.is_empty() => Takes::Nothing,
        kind if kind.starts_with("_files") => Takes::Place,
        kind if kind.starts_with("((") => Takes::Words(kind[2..].lines().map(described).collect()),
        kind if kind.starts_with('(') => Takes::Words(words(kind.trim_matches(['(', ')']))),
        kind if kind.starts_with('{') => {
            Takes::Words(words(kind.trim_matches(['{', '}'])).split_off(1))
        }
        _ => Takes::Other,
    };
    OptionRow { name, takes }
}

/// The word of `word\:"its meaning"`.
fn described(line: &str) -> String {
    line.split("\\:").next().unwrap_or_default().to_owned()
}

fn words(list: &str) -> Vec<String> {
    list.split_whitespace().map(|word| word.replace('\\', "")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_with_what_they_take() {
        let row = |name: &str, takes| OptionRow { name: name.into(), takes };
        let words = |list: &[&str]| Takes::Words(list.iter().map(|word| (*word).into()).collect());
        for (text, expected) in [
            ("--json[Prints \\[all\\]]' \\", row("--json", Takes::Nothing)),
            ("--out=[File\\: \\[default\\: -\\]]:FILE:_files' \\", row("--out", Takes::Place)),
            ("--tied=[Tied]::BOOL:(true false)' \\", row("--tied", words(&["true", "false"]))),
            (
                "--device=[Where]:DEVICE:(cpu cuda\\:0)' \\",
                row("--device", words(&["cpu", "cuda:0"])),
            ),
            ("--seed=[Key of the draws]:SEED:_default' \\", row("--seed", Takes::Other)),
            ("--depth=[Stages, D]:D:' \\", row("--depth", Takes::Other)),
            (
                "--as=[What]:FORMAT:((json\\:\"All\"\nsvg\\:\"A drawing\"))' \\",
                row("--as", words(&["json", "svg"])),
            ),
            (
                "--schedule=[A name]:NAME:{_chimera_words_or_files gpipe 1f1b}' \\",
                row("--schedule", words(&["gpipe", "1f1b"])),
            ),
        ] {
            assert_eq!(option_row(text), expected, "{text}");
        }
    }
}

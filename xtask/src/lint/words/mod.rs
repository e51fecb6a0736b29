//! The project's words: doc comments stand alone, in plain English, identifiers that gave way to
//! the field's words stay away, and the name of a type means one thing in its crate.

mod english;
mod types;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::types::Types;
use xtask::command::{project_files, root};

/// Openings of doc comments that lean on another comment: they mean nothing in a hover or in
/// `--help | grep`.
const LEANING: [&str; 8] = [
    "That of ", "Those ", "Likewise", "The same ", "The same,", "So many ", "What becomes of ",
    "As above",
];
/// The folder of this chore, which quotes retired phrases.
const CHORE: &str = "xtask/src/lint/words";
/// Retired identifiers, each with the folder that must not have it and the word to use instead.
const RETIRED: &str = include_str!("retired.txt");

/// Refuses doc comments that lean on others, indirect questions, retired phrases and identifiers,
/// and names of types that stand twice in a crate.
pub(crate) fn run() -> Result<()> {
    let retired = retired(RETIRED)?;
    let (mut refusals, mut n_files) = (Vec::new(), 0);
    let mut types = Types::default();
    let is_rust = |file: &PathBuf| file.extension().is_some_and(|end| end == "rs");
    for file in project_files()?.into_iter().filter(is_rust) {
        let text = fs::read_to_string(root().join(&file))?;
        let name = file.display().to_string();
        refusals.extend(refused(&name, &text, &retired));
        if !is_below(&name, CHORE) {
            refusals.extend(english::refused(&name, &text));
        }
        types.add(&file, &text);
        n_files += 1;
    }
    refusals.extend(types.refused());
    match refusals.len() {
        0 => eprintln!("{n_files} files use the project's words"),
        n => bail!(
            "{}\n{n} in all; xtask/src/lint/words/retired.txt has the retired identifiers",
            refusals.join("\n")
        ),
    }
    Ok(())
}

/// A line of the list: a folder, an identifier, and the replacement.
type Retired<'l> = (&'l str, &'l str, &'l str);

fn retired(list: &str) -> Result<Vec<Retired<'_>>> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (folder, rest) = line.split_once(' ').context("a folder, an identifier, a word")?;
            let (identifier, word) =
                rest.trim_start().split_once(' ').context("an identifier, a word")?;
            Ok((folder, identifier, word.trim()))
        })
        .collect()
}

/// Collects the refusals of a file, by line.
fn refused(name: &str, text: &str, retired: &[Retired<'_>]) -> Vec<String> {
    let mut refusals = Vec::new();
    let here: Vec<_> = retired.iter().filter(|(folder, ..)| is_below(name, folder)).collect();
    let mut is_inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let doc =
            line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start);
        // Only the first line of a comment opens it.
        let opening = doc
            .filter(|_| !is_inside)
            .and_then(|doc| LEANING.iter().find(|o| doc.starts_with(**o)));
        is_inside = doc.is_some();
        if let Some(opening) = opening {
            let why = "leans on another comment: name the thing";
            refusals.push(format!("{name}:{number}: `{}` {why}", opening.trim_end()));
        }
        let code = if doc.is_some() { "" } else { line.split("//").next().unwrap_or_default() };
        for (_, identifier, word) in
            here.iter().filter(|(_, identifier, _)| has_word(code, identifier))
        {
            refusals.push(format!("{name}:{number}: `{identifier}` is retired: {word}"));
        }
    }
    refusals
}

fn is_below(name: &str, folder: &str) -> bool {
    name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns true if an identifier stands in a line of code.
fn has_word(code: &str, identifier: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == identifier)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusals(text: &str) -> Vec<String> {
        refused(
            "src/a.rs",
            text,
            &retired("src  Letter  Message\nelsewhere  Box  crate\n").unwrap(),
        )
    }

    #[test]
    fn leaning_comments_are_refused() {
        let refused = refusals(
            "/// Those that wait.\nstruct A;\n/// Ranks.\n/// Those that wait come last.\nstruct B;",
        );
        assert_eq!(refused, ["src/a.rs:1: `Those` leans on another comment: name the thing"]);
    }

    #[test]
    fn retired_identifiers_are_refused_where_they_stood() {
        let refused =
            refusals("let x: Letter = Box::new(y); // a Letter\n/// A Letter.\nlet Letters = 1;");
        assert_eq!(refused, ["src/a.rs:1: `Letter` is retired: Message"]);
    }

    #[test]
    fn the_list_can_be_read() {
        assert!(retired(RETIRED).unwrap().len() > 20);
        assert!(retired("one\n").is_err());
    }
}

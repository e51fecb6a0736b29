//! Constructions that plain English does without, counted for each crate. limits.txt has the most that each may have, which
//! only falls.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use xtask::command::root;

use crate::lint::sources::is;

/// Phrases in comments and in texts of the program.
const PHRASES: [&str; 8] = [
    "behind", "so many", "told", "said", "in the place of", "which is no", "that is no",
    "each of which",
];
/// Uses of these phrases that are right.
const RIGHT: [&str; 6] = [
    "left behind", "leave behind", "leaves behind", "behind the feature", "behind a feature",
    "so many that",
];
/// Heads of doc comments that are indirect questions. `Whether` is right for a boolean field.
const QUESTIONS: [&str; 7] = ["What", "How", "Which", "Where", "Who", "Whose", "Why"];
/// The file with the limits.
const LIMITS: &str = "xtask/src/lint/words/limits.txt";

/// Questions and phrases of a crate.
type Counts = [usize; 2];

/// Counts by the folder of a crate.
#[derive(Default)]
pub(super) struct English(BTreeMap<String, Counts>);

impl English {
    /// Adds a file, whose path begins at the root of the repository.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let is_crate = |folder: &&Path| root().join(folder).join("Cargo.toml").exists();
        let folder = file.ancestors().skip(1).find(is_crate).unwrap_or(Path::new(""));
        let name = if folder == Path::new("") { ".".into() } else { folder.display().to_string() };
        let [questions, phrases] = self.0.entry(name).or_default();
        let (n_questions, n_phrases) = count(text);
        (*questions, *phrases) = (*questions + n_questions, *phrases + n_phrases);
    }

    /// Prints the counts, and returns a refusal of each crate that has more than its limit. With `lower`, makes the limits
    /// today's counts instead, unless there are more in all.
    pub(super) fn check(&self, lower: bool) -> Result<Vec<String>> {
        let path: PathBuf = root().join(LIMITS);
        let limits = read(&fs::read_to_string(&path).context(LIMITS)?)?;
        let sum = |counts: &BTreeMap<String, Counts>| {
            let add = |sum: Counts, counts: &Counts| [sum[0] + counts[0], sum[1] + counts[1]];
            counts.values().fold([0, 0], add)
        };
        let (now, most) = (sum(&self.0), sum(&limits));
        let mut table =
            String::from("# Crate, doc comments that begin with a question, retired phrases.\n");
        for (name, [questions, phrases]) in &self.0 {
            let _ = writeln!(table, "{name:<24} {questions:>5} {phrases:>5}");
        }
        eprint!("{table}");
        eprintln!(
            "{:<24} {:>5} {:>5}, of at most {} and {}",
            "in all", now[0], now[1], most[0], most[1]
        );
        if lower {
            ensure!(now[0] <= most[0] && now[1] <= most[1], "there are more than before");
            fs::write(&path, table)?;
            return Ok(Vec::new());
        }
        let more = self.0.iter().filter(|(name, counts)| {
            let most = limits.get(*name).copied().unwrap_or_default();
            counts[0] > most[0] || counts[1] > most[1]
        });
        let refusal = |(name, [questions, phrases]): (&String, &Counts)| {
            let most = limits.get(name).copied().unwrap_or_default();
            format!(
                "{name}: {questions} doc comments begin with a question, and {phrases} phrases are retired; {} and {} may be: \
                 write new ones in plain English (where files have moved: cargo xtask words --lower)",
                most[0], most[1]
            )
        };
        Ok(more.map(refusal).collect())
    }
}

/// Reads limits.
fn read(text: &str) -> Result<BTreeMap<String, Counts>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let limit = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, questions, phrases] = words[..] else {
            anyhow::bail!("{LIMITS}: not a crate and two numbers: {line}")
        };
        Ok((name.to_owned(), [questions.parse()?, phrases.parse()?]))
    };
    lines.map(limit).collect()
}

/// Counts the doc comments of a file that begin with a question, and its retired phrases.
fn count(text: &str) -> (usize, usize) {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let (mut n_questions, mut prose, mut at) = (0, String::new(), 0);
    while at < lines.len() {
        let kind = kind(lines[at]);
        let n = lines[at..].iter().take_while(|line| self::kind(line) == kind).count();
        let block = &lines[at..at + n];
        at += n;
        if let Some(mark) = kind {
            let text: Vec<&str> = block.iter().map(|line| line[mark.len()..].trim()).collect();
            let text = text.join(" ");
            n_questions += usize::from(mark != "//" && is_question(&text, &lines[at..]));
            let _ = write!(prose, "{text} . ");
        } else {
            let comments = block.iter().filter_map(|line| line.split_once(" // "));
            comments.for_each(|(_, comment)| prose.extend([comment, " . "]));
        }
    }
    if let Ok(tokens) = text.parse() {
        add_literals(tokens, &mut prose);
    }
    (n_questions, n_phrases(&prose))
}

/// The mark of a line that is a comment.
fn kind(line: &str) -> Option<&'static str> {
    ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark))
}

/// Returns true if a doc comment begins with an indirect question, which `Whether` is not above a boolean field.
fn is_question(text: &str, below: &[&str]) -> bool {
    let head = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    let item = below.iter().find(|line| !line.starts_with(['#', ')', '/']) && !line.is_empty());
    let is_field = |line: &&str| line.contains("bool") && !line.contains("fn ");
    QUESTIONS.contains(&head) || head == "Whether" && !item.is_some_and(is_field)
}

/// Adds the texts of all literals, but those of attributes.
fn add_literals(tokens: TokenStream, prose: &mut String) {
    let mut is_attribute = false;
    for token in tokens {
        match &token {
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with(['"', 'r']) {
                    prose.extend([text.trim_matches(['r', '#', '"']), " . "]);
                }
            }
            TokenTree::Group(group) if !is_attribute => add_literals(group.stream(), prose),
            _ => {}
        }
        is_attribute = is(Some(&token), "#") || is_attribute && is(Some(&token), "!");
    }
}

/// Counts the retired phrases in a text, as whole words.
fn n_phrases(prose: &str) -> usize {
    let mut clean = String::from(" ");
    for word in prose.split_whitespace() {
        let bare = word.trim_matches(|c: char| ".,;:!?()\"".contains(c));
        let _ = write!(clean, "{} ", bare.to_lowercase());
        if !word.ends_with(bare) {
            clean.push_str("| "); // phrases end with their sentence
        }
    }
    let clean = RIGHT.iter().fold(clean, |text, right| text.replace(&format!(" {right} "), " | "));
    let found = |phrase: &&str| {
        let phrase = format!(" {phrase} ");
        let after = clean.split(&phrase).skip(1);
        after.filter(|rest| !rest.starts_with("longer ")).count()
    };
    PHRASES.iter().map(found).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_heads_of_doc_comments() {
        let text = "//! What it is.\n\n/// Runs.\n/// What it runs.\nfn f() {}\n/// How.\nstruct S {\n    /// Whether it is.\n    \
                    #[arg(long)]\n    is: bool,\n}\n/// Whether it can.\nfn can() -> bool {}\n// Why not.\n";
        assert_eq!(count(text).0, 3);
    }

    #[test]
    fn phrases_are_found_across_lines_and_in_texts() {
        let text = "// A rank is so\n// many. Behind it; told. Left\n// behind.\nfn told() { print(\"it said, that is no longer so\"); }\n";
        assert_eq!(count(text).1, 4);
    }
}

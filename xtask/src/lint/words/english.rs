//! Constructions that plain English does without.

use std::fmt::Write as _;

use proc_macro2::{TokenStream, TokenTree};

use crate::lint::sources::is;

/// Retired phrases in comments and in texts of the program.
const PHRASES: [&str; 8] = [
    "behind", "so many", "told", "said", "in the place of", "which is no", "that is no",
    "each of which",
];
/// Uses of these phrases that are correct.
const RIGHT: [&str; 6] = [
    "left behind", "leave behind", "leaves behind", "behind the feature", "behind a feature",
    "so many that",
];
/// First words of doc comments that are indirect questions. `Whether` is right for a boolean field.
const QUESTIONS: [&str; 7] = ["What", "How", "Which", "Where", "Who", "Whose", "Why"];

/// Refuses doc comments that begin with an indirect question, and retired phrases, by line.
pub(super) fn refused(name: &str, text: &str) -> Vec<String> {
    let (mut refusals, mut prose) = (Vec::new(), Vec::new());
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut at = 0;
    while at < lines.len() {
        let (kind, number) = (kind(lines[at]), at + 1);
        let n = lines[at..].iter().take_while(|line| self::kind(line) == kind).count();
        let block = &lines[at..at + n];
        at += n;
        let Some(mark) = kind else {
            let comments = (number..).zip(block).filter_map(|(number, line)| {
                let (_, comment) = line.split_once(" // ")?;
                Some((number, comment.to_string()))
            });
            prose.extend(comments);
            continue;
        };
        let text: Vec<&str> = block.iter().map(|line| line[mark.len()..].trim()).collect();
        let text = text.join(" ");
        if mark != "//" && is_question(&text, &lines[at..]) {
            let instead = "begin with a noun or a verb";
            refusals.push(format!("{name}:{number}: begins with an indirect question: {instead}"));
        }
        prose.push((number, text));
    }
    if let Ok(tokens) = text.parse() {
        add_literals(tokens, &mut prose);
    }
    for (number, text) in prose {
        let retired = phrases(&text)
            .into_iter()
            .map(|phrase| format!("{name}:{number}: `{phrase}` is retired: write plain English"));
        refusals.extend(retired);
    }
    refusals
}

/// The mark of a line that is a comment.
fn kind(line: &str) -> Option<&'static str> {
    ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark))
}

/// Returns true if a doc comment begins with an indirect question. `Whether` is right for a boolean
/// field.
fn is_question(text: &str, below: &[&str]) -> bool {
    let head = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    let item = below.iter().find(|line| !line.starts_with(['#', ')', '/']) && !line.is_empty());
    let is_field = |line: &&str| line.contains("bool") && !line.contains("fn ");
    QUESTIONS.contains(&head) || head == "Whether" && !item.is_some_and(is_field)
}

/// Adds the lines and texts of all literals outside of attributes.
fn add_literals(tokens: TokenStream, prose: &mut Vec<(usize, String)>) {
    let mut is_attribute = false;
    for token in tokens {
        match &token {
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with(['"', 'r']) {
                    let text = text.trim_matches(['r', '#', '"']).to_string();
                    prose.push((literal.span().start().line, text));
                }
            }
            TokenTree::Group(group) if !is_attribute => add_literals(group.stream(), prose),
            _ => {}
        }
        is_attribute = is(Some(&token), "#") || is_attribute && is(Some(&token), "!");
    }
}

/// Returns the retired phrases in a text, matched as whole words.
fn phrases(text: &str) -> Vec<&'static str> {
    let mut clean = String::from(" ");
    for word in text.split_whitespace() {
        let bare = word.trim_matches(|c: char| ".,;:!?()\"".contains(c));
        let _ = write!(clean, "{} ", bare.to_lowercase());
        if !word.ends_with(bare) {
            clean.push_str("| "); // phrases end with their sentence
        }
    }
    let clean = RIGHT.iter().fold(clean, |text, right| text.replace(&format!(" {right} "), " | "));
    let stands = |phrase: &&str| {
        let phrase = format!(" {phrase} ");
        clean.split(&phrase).skip(1).any(|rest| !rest.starts_with("longer "))
    };
    PHRASES.into_iter().filter(stands).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_heads_of_doc_comments() {
        let text = "//! What it is.\n\n/// Runs.\n/// What it runs.\nfn f() {}\n/// How.\nstruct S {\n\
                    /// Whether it is.\n#[arg(long)]\nis: bool,\n}\n/// Whether it can.\n\
                    fn can() -> bool {}\n// Why not.\n";
        let lines = refused("a.rs", text).into_iter().map(|refusal| {
            let (place, why) = refusal.split_once(": ").unwrap();
            assert!(why.starts_with("begins with an indirect question"), "{why}");
            place.to_string()
        });
        assert_eq!(lines.collect::<Vec<_>>(), ["a.rs:1", "a.rs:6", "a.rs:12"]);
    }

    #[test]
    fn phrases_are_found_across_lines_and_in_texts() {
        let text = "// A rank is so\n// many. Behind it; told. Left\n// behind.\n\
                    fn told() { print(\"it said, that is no longer so\"); }\n";
        let why = "is retired: write plain English";
        let expected = [(1, "behind"), (1, "so many"), (1, "told"), (4, "said")];
        let expected = expected.map(|(line, phrase)| format!("a.rs:{line}: `{phrase}` {why}"));
        assert_eq!(refused("a.rs", text), expected);
    }
}

//! The first run of a new user: `chimera train` without options, on two idle cores or more.
//!
//! `cargo test --release -p chimera-pipeline --test cli first_run -- --ignored` runs it, with
//! Debian's `wamerican` for the dictionary.

use std::collections::HashSet;
use std::fs::read_to_string;

use serde_json::Value;

use crate::command::{chimera, folder};

/// Debian's list of American English words.
const DICTIONARY: &str = "/usr/share/dict/american-english";
/// The largest validation loss on the built-in text.
const MOST_LOSS: f64 = 1.38;
/// The least share of words in the dictionary. Texts of the run that was measured had 0.96.
const LEAST_WORDS: f64 = 0.88;
/// Texts that are looked at, in addition to the one that the run prints.
const N_TEXTS: u64 = 4;

/// Returns the words of a text in the dictionary, and all words but the last, which may be cut off.
fn words(text: &str, dictionary: &HashSet<String>) -> (usize, usize) {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '\'';
    let words = text.split(|letter: char| !is_letter(letter)).filter(|word| !word.is_empty());
    let mut words: Vec<String> = words.map(str::to_lowercase).collect();
    words.pop();
    let known = words.iter().filter(|word| dictionary.contains(word.trim_matches('\'')));
    (known.count(), words.len())
}

#[test]
#[ignore = "it trains for 90 s in a release build, and needs Debian's wamerican"]
fn the_first_run_writes_english_words() {
    let dictionary = read_to_string(DICTIONARY).expect("install wamerican");
    let dictionary: HashSet<String> = dictionary.lines().map(str::to_lowercase).collect();
    let folder = folder();
    let run = folder.path().join("run");
    let ran = chimera(&format!("train --json --out {}", run.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("a summary");
    let loss = summary["validation_loss"].as_f64().expect("a loss");
    assert!(loss <= MOST_LOSS, "{loss}");
    let (mut known, mut all) = words(summary["sample"].as_str().expect("a text"), &dictionary);
    for seed in 1..=N_TEXTS {
        let place = run.display();
        let line =
            format!("generate --model {place} --prompt \"\n\" --temperature 0.5 --seed {seed}");
        let more = words(&chimera(&line).stdout, &dictionary);
        (known, all) = (known + more.0, all + more.1);
    }
    let share = known as f64 / all as f64;
    assert!(all > 150 && share > LEAST_WORDS, "{known} of {all} words");
}

#[test]
fn words_are_counted_without_the_last() {
    let dictionary: HashSet<String> = ["and", "god"].map(str::to_owned).into();
    assert_eq!(words("And God's 'god' unto Go", &dictionary), (2, 4));
}

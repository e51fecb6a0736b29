//! Numbers of the project: lines, words, and the sizes of the largest parts. Each has a limit,
//! which is lowered as the work goes on, and a goal.

mod code;
mod prose;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::PathBuf;

use anyhow::{Result, bail};
use xtask::command::{project_files, root};
use xtask::measure::median;

use self::code::{Code, is_product};
use self::prose::Prose;
use super::sources::Source;

/// Maximum lines of a file.
const LONG_FILE: usize = 400;
/// Maximum lines of a function.
const LONG_FUNCTION: usize = 70;
/// Maximum files of a folder, unless it is a table of similar things.
const FULL_FOLDER: usize = 16;
/// Folders that are such tables.
const TABLES: [&str; 2] = ["chimera-core/schedule/src/schedule", "src/cli/commands"];

/// Files of capabilities that are newer than the goals for all lines and words, which do not count them.
const LATER: &str = include_str!("later.txt");

/// A number with its limit and its goal.
struct Count {
    what: &'static str,
    value: f64,
    limit: f64,
    goal: f64,
    /// The largest parts, if the goal is not reached.
    examples: Vec<String>,
}

/// Limit and goal of each number: today's values, rounded up.
const LIMITS: [(&str, f64, f64); 9] = [
    ("lines of the product", 106_100.0, 91_000.0),
    ("lines of xtask", 5_500.0, 5_500.0),
    ("words of docs", 45_600.0, 45_000.0),
    ("words of a sentence of docs, in the mean", 20.0, 20.0),
    ("lines of a file, in the median", 140.0, 140.0),
    ("lines of the longest file", 400.0, 400.0),
    ("files above 400 lines", 0.0, 0.0),
    ("functions above 70 lines", 0.0, 0.0),
    ("folders above 16 files", 0.0, 0.0),
];

/// Prints all numbers, and refuses those above their limits.
pub(crate) fn run() -> Result<()> {
    let counts = counts()?;
    println!("{:<42}{:>10}{:>10}{:>10}", "", "is", "limit", "goal");
    for Count { what, value, limit, goal, examples } in &counts {
        let value = (value * 10.0).round() / 10.0;
        println!("{what:<42}{value:>10}{limit:>10}{goal:>10}");
        let is_reached = value <= *goal;
        examples.iter().filter(|_| !is_reached).for_each(|example| println!("    {example}"));
    }
    let above = counts.iter().filter(|count| count.value > count.limit);
    let above: Vec<_> = above.map(|count| count.what).collect();
    if !above.is_empty() {
        bail!("above its limit: {}", above.join("; "));
    }
    Ok(())
}

/// Counts the files of the project.
fn counts() -> Result<Vec<Count>> {
    let files = project_files()?;
    let has_end = |path: &&PathBuf, end: &str| path.extension().is_some_and(|found| found == end);
    let text = |path: &PathBuf| read_to_string(root().join(path));
    let rust: Vec<_> = files.iter().filter(|path| has_end(path, "rs")).collect();
    let source = |path: &&PathBuf| Ok(Source { path: (*path).clone(), text: text(path)? });
    let product = rust.iter().copied().filter(|path| is_product(path));
    let code = Code::count(product.clone().map(|path| source(&path)).collect::<Result<_>>()?)?;
    let mut n_xtask = 0;
    for path in rust.iter().filter(|path| path.starts_with("xtask")) {
        n_xtask += text(path)?.lines().count();
    }
    let mut prose = Prose::default();
    let is_later = |name: &str| LATER.lines().any(|later| later == name);
    let pages = files.iter().filter(|path| path.starts_with("docs") && has_end(path, "md"));
    for path in pages.filter(|path| !is_later(&path.display().to_string())) {
        prose.add(&text(path)?);
    }
    let later = code.files.iter().filter(|(name, _)| is_later(name));
    let n_later: usize = later.map(|(_, n)| n).sum();
    let long_files = above(&code.files, LONG_FILE);
    let long_functions = above(&code.functions, LONG_FUNCTION);
    let full_folders = above(&folders(&rust), FULL_FOLDER);
    let lengths = code.files.iter().map(|(_, n)| *n as f64);
    let longest = code.files.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let number = |n: usize| (n as f64, Vec::new());
    let number_of = |parts: Vec<(String, usize)>| {
        let examples = parts.iter().take(5).map(|(name, n)| format!("{n:>4} {name}"));
        (parts.len() as f64, examples.collect())
    };
    let values = [
        number(code.n_lines - n_later),
        number(n_xtask),
        number(prose.n_words),
        (prose.mean_sentence(), Vec::new()),
        (median(lengths.collect()), Vec::new()),
        number(longest),
        number_of(long_files),
        number_of(long_functions),
        number_of(full_folders),
    ];
    let count =
        |((what, limit, goal), (value, examples))| Count { what, value, limit, goal, examples };
    Ok(LIMITS.into_iter().zip(values).map(count).collect())
}

/// Folders of the product and of chores with their Rust files, without tables.
fn folders(rust: &[&PathBuf]) -> Vec<(String, usize)> {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for path in rust.iter().filter(|path| is_product(path) || path.starts_with("xtask")) {
        let folder = path.parent().map(|folder| folder.display().to_string());
        *folders.entry(folder.unwrap_or_default()).or_default() += 1;
    }
    folders.into_iter().filter(|(folder, _)| !TABLES.contains(&folder.as_str())).collect()
}

/// The parts that are larger than `most`, the largest first.
fn above(parts: &[(String, usize)], most: usize) -> Vec<(String, usize)> {
    let mut above: Vec<_> = parts.iter().filter(|(_, n)| *n > most).cloned().collect();
    above.sort_by_key(|(_, n)| Reverse(*n));
    above
}

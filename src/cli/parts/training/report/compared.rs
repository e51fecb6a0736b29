//! A page that compares runs side by side.

use std::collections::BTreeSet;
use std::fmt::Write;

use chimera_core::notation::{significant, size};
use serde_json::{Value, json};

use super::curve;
use super::gathered::Gathered;
use super::lanes::Lanes;
use super::page::{controls, document};
use super::tables::current;
use super::text::{Escaped, note};
use crate::cli::parts::terminal::console::fixed;
use crate::cli::parts::training::comparison::length;

/// The most runs on a page: there are as many colours of curves.
pub(super) const MOST_RUNS: usize = 4;
/// Classes of the curves.
const CLASSES: [&str; MOST_RUNS] = ["run1", "run2", "run3", "run4"];

/// Renders the comparison of runs.
pub(super) fn html(runs: &[Gathered]) -> String {
    let names: Vec<String> = runs.iter().map(name).collect();
    let title = names.join(" and ");
    let (drawn, data) = steps(runs);
    let sections = [
        ("Figures", table(&names, &figures(runs))),
        ("Loss", losses(runs, &names)),
        ("Settings that differ", differences(runs, &names)),
        ("Measured step", drawn),
        ("Samples", sides(runs, sample)),
        ("Advice", sides(runs, advice)),
    ];
    document(&title, &format!("<h1>{}</h1>\n", Escaped(&title)), &sections, &data)
}

fn name(run: &Gathered) -> String {
    run.run.folder().display().to_string()
}

/// Returns a row of each figure, with its value in each run.
fn figures(runs: &[Gathered]) -> Vec<(&'static str, Vec<Option<String>>)> {
    let ended = |of: &dyn Fn(&super::gathered::RunSummary) -> Option<String>| {
        runs.iter().map(|run| current(run).and_then(of)).collect::<Vec<_>>()
    };
    let last = |of: &dyn Fn(&crate::observe::Metrics) -> Option<String>| {
        runs.iter().map(|run| run.run.last.as_ref().and_then(of)).collect::<Vec<_>>()
    };
    let seconds = |seconds: f64| format!("{} s", significant(seconds, 4));
    vec![
        ("validation loss", ended(&|run| Some(fixed(run.validation_loss?, 4)))),
        ("training", ended(&|run| run.seconds.map(seconds))),
        ("steps", last(&|last| Some((last.step + 1).to_string()))),
        ("loss of the last step", last(&|last| Some(fixed(last.loss?, 4)))),
        ("time of the last step", last(&|last| Some(seconds(last.step_s)))),
        ("tokens/s", last(&|last| Some(significant(last.tokens_per_s, 4)))),
        ("bubble ratio", last(&|last| Some(fixed(last.bubble_ratio, 4)))),
        ("largest memory of a rank", last(&|last| Some(size(last.max_rank_bytes as f64)))),
    ]
}

/// Returns a row of each setting that is not the same in all runs.
fn differences(runs: &[Gathered], names: &[String]) -> String {
    /// Settings about the folder of a run.
    const OF_FOLDER: [&str; 2] = ["out", "resume"];
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.table.keys()).collect();
    let rows = keys.into_iter().filter(|key| !OF_FOLDER.contains(&key.as_str())).map(|key| {
        let values: Vec<Option<String>> = runs.iter().map(|run| run.setting(key)).collect();
        (key.as_str(), values)
    });
    let rows: Vec<_> =
        rows.filter(|(_, values)| values.iter().any(|value| *value != values[0])).collect();
    if rows.is_empty() { note("All settings are the same.") } else { table(names, &rows) }
}

fn table(names: &[String], rows: &[(&str, Vec<Option<String>>)]) -> String {
    let cells = |cells: &mut dyn Iterator<Item = &str>, tag: &str| -> String {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", Escaped(cell))).collect()
    };
    let head = cells(&mut names.iter().map(String::as_str), "th");
    let mut html = format!("<table>\n<tr><th></th>{head}</tr>\n");
    for (what, values) in rows {
        let values = values.iter().map(|value| value.as_deref().unwrap_or("\u{2013}"));
        let values = cells(&mut values.into_iter(), "td");
        let _ = writeln!(html, "<tr><td>{}</td>{values}</tr>", Escaped(what));
    }
    html + "</table>\n"
}

fn losses(runs: &[Gathered], names: &[String]) -> String {
    let lines = runs.iter().zip(CLASSES).map(|(run, class)| (class, &run.run.losses[..]));
    let Some(drawing) = curve::curves(&lines.collect::<Vec<_>>()) else {
        return note("The metrics have no step with a finite loss.");
    };
    let keys = names.iter().zip(CLASSES);
    let keys =
        keys.map(|(name, class)| format!("<span class=\"{class}\">{}</span>", Escaped(name)));
    let keys = keys.collect::<Vec<_>>().join(" ");
    format!("{drawing}<p class=\"key\">{keys}</p>\n<p class=\"about\">Loss in nats, by step.</p>\n")
}

/// Returns the measured step of each run, which the script draws, and the script's data.
fn steps(runs: &[Gathered]) -> (String, Value) {
    let (mut html, mut data) = (String::new(), json!({}));
    let mut whole = "step".to_string();
    for (run, class) in runs.iter().zip(CLASSES) {
        let name = name(run);
        let drawn = match &run.measured {
            Ok(measured) => {
                data[class] = Lanes::of(&measured.run).data;
                whole = length(measured.run.n_steps().unwrap_or(1));
                format!(
                    ": {}</h3>\n<canvas id=\"{class}\" tabindex=\"0\"></canvas>\n",
                    Escaped(&measured.which)
                )
            }
            Err(why) => format!("</h3>\n{}", note(why)),
        };
        let _ = write!(html, "<h3>{}{drawn}", Escaped(&name));
    }
    if data == json!({}) { (html, data) } else { (controls(&whole) + &html, data) }
}

/// Renders a part of each run, side by side.
fn sides(runs: &[Gathered], part: impl Fn(&Gathered) -> String) -> String {
    let side =
        |run: &Gathered| format!("<div><h3>{}</h3>\n{}</div>\n", Escaped(&name(run)), part(run));
    format!("<div class=\"sides\">\n{}</div>\n", runs.iter().map(side).collect::<String>())
}

fn sample(run: &Gathered) -> String {
    match current(run).and_then(|ended| ended.sample.as_deref()) {
        Some(text) => format!("<blockquote>{}</blockquote>\n", Escaped(text)),
        None => note("The run has written no text."),
    }
}

fn advice(run: &Gathered) -> String {
    let lines = current(run).map_or(&[][..], |ended| &ended.advice[..]);
    if lines.is_empty() {
        return note("There is none.");
    }
    let lines = lines.iter().map(|line| format!("<li>{}</li>\n", Escaped(line)));
    format!("<ul>\n{}</ul>\n", lines.collect::<String>())
}

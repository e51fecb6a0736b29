//! Texts and tables of the page.

use std::fmt::Write;

use chimera_core::notation::{significant, size};

use super::gathered::{Gathered, RunSummary};
use super::text::{Escaped, note};
use crate::cli::parts::terminal::console::fixed;
use crate::cli::parts::terminal::signed::Signed;
use crate::cli::parts::training::followed::RunState;
use crate::cli::parts::training::predicted;
use crate::cli::parts::training::suggest;
use crate::run::SETTINGS;
use crate::settings::quoted;

/// Settings that describe the run, shown at the top.
const SHAPE: [&str; 10] = [
    "model",
    "preset",
    "schedule",
    "depth",
    "layout",
    "width",
    "micro-batches",
    "micro-batch-size",
    "device",
    "optimizer",
];
/// The most rows of a table with a row per rank.
const MOST_ROWS: usize = 256;

/// Renders the run's progress and its last figures.
pub(super) fn head(run: &Gathered) -> String {
    let mut html = format!("<p class=\"state\">{}</p>\n", Escaped(&run.run.progress()));
    let mut figures: Vec<(String, String)> = Vec::new();
    let mut figure = |what: &str, value: String| figures.push((what.into(), value));
    if let Some(last) = &run.run.last {
        let loss =
            last.loss.map_or("none: no token of it is a target".into(), |loss| fixed(loss, 4));
        figure("loss of the last step", loss);
        figure("step", format!("{} s", significant(last.step_s, 4)));
        figure("tokens/s", significant(last.tokens_per_s, 4));
        figure("bubble ratio", fixed(last.bubble_ratio, 4));
        if let Some(mfu) = last.mfu {
            figure("mfu", fixed(mfu, 3));
        }
    }
    if let Some(ended) = current(run) {
        if let Some(loss) = ended.validation_loss {
            figure("validation loss at the end", fixed(loss, 4));
        }
        if let Some(perplexity) = ended.perplexity {
            figure("perplexity", fixed(perplexity, 3));
        }
        if let Some(seconds) = ended.seconds {
            figure("training", format!("{} s", significant(seconds, 4)));
        }
    }
    for key in SHAPE {
        figures.extend(run.setting(key).map(|value| (key.into(), value)));
    }
    html.push_str("<dl>\n");
    for (what, value) in figures {
        let _ =
            writeln!(html, "<div><dt>{}</dt><dd>{}</dd></div>", Escaped(&what), Escaped(&value));
    }
    html + "</dl>\n"
}

/// Returns the run's summary, unless it has been continued since.
pub(super) fn current(run: &Gathered) -> Option<&RunSummary> {
    run.ended.as_ref().ok().filter(|ended| n_done(run).is_none_or(|done| done == ended.steps))
}

/// Returns a note that a run has been continued, so that `what` describes its earlier end; empty if
/// it has not.
pub(super) fn gone_on(run: &Gathered, what: &str) -> String {
    match (&run.ended, current(run)) {
        (Ok(ended), None) => {
            let n = ended.steps;
            note(&format!("The run has gone on since: {what} of its end after {n} steps."))
        }
        _ => String::new(),
    }
}

/// Number of steps in the metrics.
fn n_done(run: &Gathered) -> Option<u64> {
    run.run.last.as_ref().map(|last| last.step.saturating_add(1))
}

/// Renders the peak memory of each rank. If the traces have bytes, the script draws memory over
/// time above it.
pub(super) fn memory(run: &Gathered) -> String {
    let counts = |traced: &crate::formats::trace::TracedRun| !traced.memory.is_empty();
    let is_planned = run.planned.as_ref().is_ok_and(counts);
    let is_measured = run.measured.as_ref().is_ok_and(|measured| counts(&measured.run));
    // A resumed run continues a trace with a name of its own.
    let is_of_end = run.measured.as_ref().is_ok_and(|measured| measured.is_of_end);
    let earlier = match (is_of_end || !is_measured, is_planned) {
        (true, _) => gone_on(run, "the curves are"),
        (false, true) => gone_on(run, "the planned curves are"),
        (false, false) => String::new(),
    };
    let mut html = if is_planned || is_measured {
        earlier
            + "<canvas id=\"memory\"></canvas>\n<p class=\"about\">Activation memory over time, on the time scale \
                 above: saved activations and deferred weight work, counted from the sizes of what ops make, at the \
                 planned times (dashed) and the measured times (solid). It is counted, not asked of the device.</p>\n"
    } else {
        note("No trace counts bytes over time, so only peaks are shown.")
    };
    let ranks = run.run.last.as_ref().map_or(&[][..], |last| &last.ranks);
    if ranks.is_empty() {
        return html + &note("The metrics have no memory of ranks.");
    }
    html.push_str(
        "<table>\n<tr><th>rank</th><th>peak of the last step</th><th>bubble ratio</th></tr>\n",
    );
    for (rank, load) in ranks.iter().enumerate().take(MOST_ROWS) {
        let (peak, bubble) = (size(load.bytes as f64), fixed(load.bubble_ratio, 4));
        let _ = writeln!(html, "<tr><td>{rank}</td><td>{peak}</td><td>{bubble}</td></tr>");
    }
    html.push_str("</table>\n");
    if ranks.len() > MOST_ROWS {
        html.push_str(&note(&format!("The first {MOST_ROWS} of {} ranks.", ranks.len())));
    }
    html + "<p class=\"about\">The peak is of weights, gradients, moments and saved activations, as the run counted \
            them.</p>\n"
}

/// Renders predicted and measured figures of a profile, and planned and measured ones of the two
/// timelines.
pub(super) fn prediction(run: &Gathered) -> String {
    let mut html = match &run.ended {
        Err(why) => note(why),
        Ok(ended) => {
            let by_profile = match &ended.prediction {
                Some(figures) => {
                    let about = "<p class=\"about\">Predicted by the profile before the run. An error above zero: more \
                                 was predicted than measured. Seconds, unless a row says otherwise.</p>\n";
                    about.to_string() + &table("predicted", &predicted::rows(figures))
                }
                None => note(
                    "The run was not predicted by a profile: train with --predict PROFILE, which `chimera profile` makes.",
                ),
            };
            gone_on(run, "this is") + &by_profile
        }
    };
    html.push_str("<h3>Timelines</h3>\n");
    match &run.comparison {
        Ok(comparison) => html.push_str(&format!(
            "{}<p class=\"about\">Of the two timelines above, in seconds; an error above zero: more was measured than \
             planned. Times of a kind are means over ranks, with how many there are.</p>\n",
            table("planned", &comparison.rows())
        )),
        Err(why) => html.push_str(&note(why)),
    }
    html
}

fn table(expected: &str, rows: &[Signed]) -> String {
    let mut html =
        format!("<table>\n<tr><th></th><th>{expected}</th><th>measured</th><th>error</th></tr>\n");
    for Signed { what, expected, measured, error } in rows {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            Escaped(what),
            Escaped(expected),
            Escaped(measured),
            Escaped(error)
        );
    }
    html + "</table>\n"
}

/// Renders the run's own advice, and what to do next.
pub(super) fn advice(run: &Gathered) -> String {
    let folder = run.run.folder();
    let mut earlier = String::new();
    let mut lines: Vec<String> = Vec::new();
    let left = run.run.n_steps.filter(|all| n_done(run).is_none_or(|done| done < *all));
    if left.is_some() && run.run.state != RunState::AtWork {
        let command = suggest::to_resume(run.table.contains_key("out"), folder);
        lines.push(format!("go on with the run: {command}"));
    }
    if let Ok(ended) = &run.ended {
        lines.extend(ended.advice.iter().cloned());
        if !ended.advice.is_empty() {
            earlier = gone_on(run, "the run's own advice is");
        }
    }
    if run.measured.is_err() {
        let settings = quoted(folder.join(SETTINGS).display());
        lines.push(format!(
            "for a timeline of all ranks: chimera train --config {settings} --out NEW --trace trace.json"
        ));
    }
    if lines.is_empty() {
        return note("There is none.");
    }
    let lines = lines.iter().map(|line| format!("<li>{}</li>\n", Escaped(line)));
    format!("{earlier}<ul>\n{}</ul>\n", lines.collect::<String>())
}

/// Renders all settings with their origins.
pub(super) fn settings(run: &Gathered) -> String {
    format!(
        "<details open>\n<summary>{SETTINGS}</summary>\n<pre>{}</pre>\n</details>\n",
        Escaped(&run.settings)
    )
}

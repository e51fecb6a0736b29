//! Renders the page as HTML.

use std::fmt::Write;

use serde_json::{Value, json};

use super::curve;
use super::gathered::{Gathered, MeasuredStep, RunSummary};
use super::lanes::Lanes;
use super::ranks::ranks;
use super::tables::{advice, gone_on, head, memory, prediction, settings};
use super::text::{Escaped, note};
use crate::cli::parts::training::comparison::length;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Renders the page of a run.
pub(super) fn html(run: &Gathered) -> String {
    let title = run.run.folder().display().to_string();
    let (drawn, data) = timelines(run);
    let sections = [
        ("Loss", losses(run)),
        ("Sample", sample(run)),
        ("Planned and measured timeline", drawn),
        ("Ranks and waits", ranks(run)),
        ("Memory", memory(run)),
        ("Errors of the prediction", prediction(run)),
        ("Advice", advice(run)),
        ("Settings", settings(run)),
    ];
    let heading = format!("<h1>{}</h1>\n{}", Escaped(&title), head(run));
    document(&title, &heading, &sections, &data)
}

/// Renders a page with the data of its timelines.
pub(super) fn document(
    title: &str,
    heading: &str,
    sections: &[(&str, String)],
    data: &Value,
) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>Chimera: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{heading}",
        title = Escaped(title),
    );
    for (name, content) in sections {
        let _ = write!(page, "<section>\n<h2>{name}</h2>\n{content}</section>\n");
    }
    // Text in the data must not end the element that contains it.
    let data = data.to_string().replace('<', "\\u003c");
    page + &format!(
        "<script type=\"application/json\" id=\"timelines\">{data}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

fn losses(run: &Gathered) -> String {
    if let Err(why) = &run.metrics {
        return note(why);
    }
    let lines = [("loss", &run.run.losses[..]), ("validation", &run.run.validations)];
    let drawing = curve::curves(&lines);
    let Some(drawing) = drawing else {
        return note("The metrics have no step with a finite loss.");
    };
    let key = if run.run.validations.is_empty() {
        String::new()
    } else {
        "<p class=\"key\"><span class=\"loss\">loss</span> \
                  <span class=\"validation\">validation loss</span></p>\n"
            .into()
    };
    format!("{drawing}{key}<p class=\"about\">Loss in nats, by step.</p>\n")
}

/// Renders the text that the model wrote at the end.
fn sample(run: &Gathered) -> String {
    match &run.ended {
        Err(why) => note(why),
        Ok(RunSummary { sample: None, .. }) => note("The run has written no text."),
        Ok(RunSummary { sample: Some(text), .. }) => {
            format!("{}<blockquote>{}</blockquote>\n", gone_on(run, "it is"), Escaped(text))
        }
    }
}

/// Returns the part of the page that the script draws on, and the script's data.
fn timelines(run: &Gathered) -> (String, Value) {
    let mut html = String::new();
    let mut data = json!({});
    let by = run.ended.as_ref().ok().and_then(|ended| ended.planned_by.clone());
    let by = by.unwrap_or_else(|| "times without a name in the run".into());
    let planned = run.planned.as_ref().map(|run| (run, format!("simulated by {by}"), true));
    let measured = run.measured.as_ref();
    let measured =
        measured.map(|MeasuredStep { run, which, is_of_end }| (run, which.clone(), *is_of_end));
    let mut whole = "step".to_string();
    for (name, known) in [("planned", planned), ("measured", measured)] {
        let _ = match known {
            Ok((traced, which, is_of_end)) => {
                let lanes = Lanes::of(traced);
                data[name] = lanes.data;
                let omitted = lanes.omitted.map_or(String::new(), |omitted| format!("; {omitted}"));
                whole = length(traced.n_steps().unwrap_or(1));
                let earlier = if is_of_end { gone_on(run, "this is") } else { String::new() };
                write!(
                    html,
                    "<h3>{name}: {}{}</h3>\n{earlier}<canvas id=\"{name}\" tabindex=\"0\"></canvas>\n",
                    Escaped(&which),
                    Escaped(&omitted)
                )
            }
            Err(why) => write!(html, "<h3>{name}</h3>\n{}", note(why)),
        };
    }
    if data == json!({}) { (html, data) } else { (controls(&whole) + &html, data) }
}

/// Renders the buttons above timelines of a `whole` step, or window of steps.
pub(super) fn controls(whole: &str) -> String {
    format!(
        "<p class=\"controls\"><button id=\"in\">zoom in</button> <button id=\"out\">zoom out</button> \
                    <button id=\"fit\">whole {whole}</button> <span id=\"kinds\"></span></p>\n\
                    <p class=\"about\">Both have the same time scale. Point at a piece to see what it is; drag to move; \
                    zoom with the buttons, Ctrl and the wheel, or + and -. Below each row of compute are its \
                    gradient reductions. Red frames mark the critical path: the step is shorter only if some of these are.</p>\n"
    )
}

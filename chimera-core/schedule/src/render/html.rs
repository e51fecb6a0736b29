//! A self-contained page about one timeline: the drawing, with blocks that show their op when
//! pointed at, and the figures. It needs nothing else, not even a script.

use std::fmt::Write;

use super::xml::Escaped;
use super::{number, svg};
use crate::analyze::Timeline;
use crate::ir::ids::WorkerId;
use crate::program::Program;

const STYLE: &str = "
body { max-width: 60em; margin: 2em auto; padding: 0 1em; color: #1c2733; background: #ffffff;
       font: 15px/1.5 Inter, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; margin: 1.5em 0; }
th, td { padding: .2em 1em .2em 0; text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; border-bottom: 1px solid #d5dbe2; }
@media (prefers-color-scheme: dark) {
  body { color: #e8edf2; background: #0f151c; }
  th { border-color: #33404d; }
}
";

/// The page of a simulated or measured step of `program`.
pub fn page(program: &Program, timeline: &Timeline, title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{escaped}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n{drawing}{figures}{workers}</body>\n</html>\n",
        escaped = Escaped(title),
        drawing = svg::step(program, timeline, title),
        figures = figures(program, timeline),
        workers = workers(program, timeline),
    )
}

fn figures(program: &Program, timeline: &Timeline) -> String {
    let placement = program.placement();
    let graph = program.rules().graph();
    let stages = if graph.is_chain() {
        placement.n_stages().to_string()
    } else {
        format!("{}, with edges {graph}", placement.n_stages())
    };
    let figures = [
        ("workers", placement.n_workers().to_string()),
        ("stages", stages),
        ("pipes", placement.n_pipes().to_string()),
        ("micro-batches of a step", program.micro_batches_per_step().to_string()),
        ("steps", program.window().n_steps().to_string()),
        ("makespan", number(timeline.makespan())),
        ("bubble ratio", number(timeline.bubble_ratio())),
        ("messages", program.n_messages().to_string()),
        ("messages that a channel must hold", program.channel_bound().to_string()),
    ];
    let row =
        |(name, value): &(&str, String)| format!("<tr><td>{name}</td><td>{value}</td></tr>\n");
    format!("<table>\n{}</table>\n", figures.iter().map(row).collect::<String>())
}

fn workers(program: &Program, timeline: &Timeline) -> String {
    let mut table = String::from(
        "<table>\n<tr><th>worker</th><th>stages</th><th>busy</th><th>idle</th>\
         <th>activations, micro-batches</th></tr>\n",
    );
    let makespan = timeline.makespan();
    for (worker, (busy, peak)) in timeline.busy().iter().zip(program.peaks()).enumerate() {
        let stages = program.placement().stages_of(WorkerId(worker as u16));
        let stages: Vec<String> = stages.iter().map(|stage| stage.0.to_string()).collect();
        let _ = writeln!(
            table,
            "<tr><td>P{worker}</td><td>{}</td><td>{}</td><td>{}</td><td>{peak}</td></tr>",
            stages.join(", "),
            number(*busy),
            number(makespan - busy),
        );
    }
    table + "</table>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::simulate;
    use crate::costs::UniformCosts;
    use crate::lower::{Lowering, lower};
    use crate::schedule::{Shape, find};

    #[test]
    fn a_page_is_self_contained_and_shows_every_op() {
        let timetable = find("chimera").unwrap().timetable(&Shape::new(4, 4)).unwrap();
        let program = lower(&timetable, &Lowering::default()).unwrap();
        let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0));
        let page = page(&program, &timeline, "<chimera> & co");
        assert!(page.contains("<title>&lt;chimera&gt; &amp; co</title>"));
        assert!(!page.contains("&amp;amp;"), "a title is escaped once");
        for cell in timetable.rows.iter().flatten() {
            assert!(page.contains(&format!("<title>{cell}: ")), "{cell}");
        }
        assert!(page.contains("<td>makespan</td><td>16</td>"));
        assert!(page.contains("<td>micro-batches of a step</td><td>4</td>"));
        assert!(page.contains("<td>steps</td><td>1</td>"));
        assert!(page.contains("<tr><td>P1</td><td>1, 2</td><td>12</td><td>4</td><td>4</td></tr>"));
        for outside in ["src=", "href=", "<script", "@import", "url(h"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}

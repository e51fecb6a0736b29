//! The ranks on the page: their machines, whom they waited for, and their links.

use std::fmt::Write;

use chimera_core::notation::size;

use super::gathered::Gathered;
use super::text::{Escaped, note};
use crate::cli::parts::training::ranks::{Link, Means, Member, RankMeans, word};

/// The most ranks of a table of ranks and ranks.
const MOST_RANKS: usize = 32;
/// The most rows of the other tables.
const MOST_ROWS: usize = 256;

/// Renders members, waits and links. The tables of machines and links are there if they are known.
pub(super) fn ranks(run: &Gathered) -> String {
    let Some(means) = run.run.last_steps.means() else {
        return members(&run.run.members, None)
            + &note(
                "The metrics have no waits: the run has no steps, or one rank, or is of an earlier version.",
            );
    };
    members(&run.run.members, Some(&means)) + &waits(&means) + &links(&means)
}

/// Renders the machines of the ranks.
fn members(members: &[Member], means: Option<&Means>) -> String {
    if members.is_empty() {
        return String::new();
    }
    let mut html =
        "<table class=\"words\">\n<tr><th>rank</th><th>machine</th><th>system</th><th>device</th>\
                    <th>threads</th><th>measured speed</th><th>round trip to the host</th></tr>\n"
            .to_string();
    for member in members.iter().take(MOST_ROWS) {
        let trip = member.round_trip_s.map(|s| format!("{:.2} ms", 1e3 * s));
        let words = [&member.name, &member.system, &member.device].map(|text| word(text));
        let cells = [member.rank.to_string()].into_iter().chain(words).chain([
            member.threads.to_string(),
            member.speed().unwrap_or_else(|| "-".into()),
            trip.unwrap_or_else(|| "-".into()),
        ]);
        html.push_str(&row(cells));
    }
    html.push_str("</table>\n");
    if means.is_some_and(|means| means.ranks.len() != members.len()) {
        html.push_str(&note(
            "Some of these ranks are gone, and the others are numbered anew below.",
        ));
    }
    html + "<p class=\"about\">Speeds and round trips were measured when a machine joined.</p>\n"
}

/// Renders who waited for whom.
fn waits(means: &Means) -> String {
    let n_shown = means.ranks.len().min(MOST_RANKS);
    let mut html = "<table class=\"waits\">\n<tr><th>rank</th><th>computes</th>".to_string();
    for rank in 0..n_shown {
        let _ = write!(html, "<th>waits for {rank}</th>");
    }
    html.push_str("<th>reductions</th><th>step sync</th></tr>\n");
    for (rank, of) in means.ranks.iter().enumerate().take(n_shown) {
        let _ = write!(html, "<tr><td>{rank}</td><td>{:.1} %</td>", 100.0 * of.computing);
        let by_rank = (0..n_shown as u32).map(|from| of.waits_s.get(&from).copied());
        for seconds in by_rank.chain([of.reductions_s, of.sync_s].map(Some)) {
            html.push_str(&wait(seconds.filter(|s| *s > 0.0), means.step_s));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
    if n_shown < means.ranks.len() {
        let n = means.ranks.len();
        html.push_str(&note(&format!("The first {n_shown} of {n} ranks.")));
    }
    let longest = longest(&means.ranks);
    let _ = writeln!(
        html,
        "<p class=\"about\">Milliseconds of a step, which took {:.1} ms: means over the last {} steps. A row waits for \
         messages of the rank above a column. A reduction waits for all of its ranks, and the step sync for the \
         slowest rank.{longest} Work of the transport is in none of these.</p>",
        1e3 * means.step_s,
        means.n_steps
    );
    html
}

/// Names the longest wait of a rank for another.
fn longest(ranks: &[RankMeans]) -> String {
    let all = ranks.iter().enumerate().flat_map(|(rank, of)| {
        of.waits_s.iter().map(move |(from, seconds)| (rank, *from, *seconds))
    });
    let longest = all.max_by(|(.., a), (.., b)| a.total_cmp(b));
    longest.map_or(String::new(), |(rank, from, seconds)| {
        format!(" The longest is that of rank {rank} for rank {from}: {:.1} ms.", 1e3 * seconds)
    })
}

/// Renders a wait, with a background that shows its share of the step.
fn wait(seconds: Option<f64>, step_s: f64) -> String {
    let Some(seconds) = seconds else { return "<td></td>".into() };
    let share = if step_s > 0.0 { (100.0 * seconds / step_s).clamp(0.0, 100.0) } else { 0.0 };
    format!("<td style=\"--share: {share:.0}%\">{:.1}</td>", 1e3 * seconds)
}

/// Renders the links that the transport has measured, a row per direction.
fn links(means: &Means) -> String {
    let of_rank = |(rank, of): (usize, &RankMeans)| {
        of.links.iter().map(|(to, link)| row(link_cells(rank, *to, link))).collect::<Vec<_>>()
    };
    let rows: Vec<String> = means.ranks.iter().enumerate().flat_map(of_rank).collect();
    if rows.is_empty() {
        return String::new();
    }
    let omitted = match rows.len() {
        n if n > MOST_ROWS => note(&format!("The first {MOST_ROWS} of {n} links.")),
        _ => String::new(),
    };
    format!(
        "<h3>Links</h3>\n<table>\n<tr><th>from - to</th><th>round trip</th><th>sent in a step</th><th>in use</th>\
         <th>rate in use</th></tr>\n{}</table>\n{omitted}<p class=\"about\">A link is in use while something that was \
         sent has not arrived. Its rate is that of the messages of this run: a link that is never full may carry \
         more. The round trip is the shortest one.</p>\n",
        rows.into_iter().take(MOST_ROWS).collect::<String>()
    )
}

fn link_cells(rank: usize, to: u32, link: &Link) -> [String; 5] {
    [
        format!("{rank} - {to}"),
        format!("{:.2} ms", 1e3 * link.round_trip_s),
        size(link.sent_bytes),
        format!("{:.1} ms", 1e3 * link.busy_s),
        link.shown_rate(),
    ]
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells = cells.into_iter().map(|cell| format!("<td>{}</td>", Escaped(&cell)));
    format!("<tr>{}</tr>\n", cells.collect::<String>())
}

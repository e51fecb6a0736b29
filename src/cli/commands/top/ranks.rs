//! The ranks in the view of a run: how busy they are, whom they wait for, and their links.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::widgets::{Block, LineGauge, Paragraph};

use crate::cli::parts::training::followed::Followed;
use crate::cli::parts::training::ranks::{Link, Means, Member, RankMeans, word};
use crate::observe::RankMetrics;

/// Columns of a gauge beside the waits of its rank, with and without a machine.
const GAUGE: u16 = 52;
const SHORT_GAUGE: u16 = 36;
/// Waits below this part of a step are left out.
const NAMED: f64 = 0.01;
/// The most characters of a machine's name.
const NAME: usize = 12;

/// The parts of the view that are about ranks.
pub(super) struct Ranks<'r> {
    ranks: &'r [RankMetrics],
    means: Option<Means>,
    members: &'r [Member],
    /// Lines about links.
    links: Vec<String>,
}

impl<'r> Ranks<'r> {
    pub(super) fn of(run: &'r Followed, ranks: &'r [RankMetrics]) -> Ranks<'r> {
        let means = run.last_steps.means();
        // After a death the ranks are numbered anew.
        let is_whole = run.members.len() == ranks.len();
        let members = if is_whole { &run.members[..] } else { &[] };
        let links = means.iter().flat_map(links).collect();
        Ranks { ranks, means, members, links }
    }

    /// Rows of the two parts, with their borders.
    pub(super) fn heights(&self) -> [u16; 2] {
        let rows = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).saturating_add(2);
        let links = if self.links.is_empty() { 0 } else { rows(self.links.len()) };
        [rows(self.ranks.len()), links]
    }

    /// Draws a line per rank: its idle time, its memory, its machine and its waits.
    pub(super) fn draw(&self, frame: &mut Frame, area: Rect) {
        let title = match &self.means {
            None => " bubble and memory of each rank ".to_string(),
            Some(means) => format!(
                " bubble and memory of each rank; waits in ms of a step of {:.1} ms ",
                1e3 * means.step_s
            ),
        };
        let block = Block::bordered().title(title);
        let inside = block.inner(area);
        frame.render_widget(block, area);
        for (rank, (load, row)) in self.ranks.iter().zip(inside.rows()).enumerate() {
            let Some(means) = &self.means else {
                frame.render_widget(self.gauge(rank, load), row);
                continue;
            };
            let gauge = if self.members.is_empty() { SHORT_GAUGE } else { GAUGE };
            let parts = [Constraint::Max(gauge), Constraint::Fill(1)];
            let [left, right] = Layout::horizontal(parts).spacing(1).areas(row);
            frame.render_widget(self.gauge(rank, load), left);
            let waits = means.ranks.get(rank).map(|rank| waits(rank, means.step_s));
            frame.render_widget(waits.unwrap_or_default(), right);
        }
    }

    fn gauge(&self, rank: usize, load: &RankMetrics) -> LineGauge<'_> {
        let member = self.members.iter().find(|member| member.rank as usize == rank);
        let machine = member.map_or(String::new(), |member| {
            let name: String = word(&member.name).chars().take(NAME).collect();
            let speed = member.speed().map_or(String::new(), |speed| format!(" {speed}"));
            format!("{name} {}{speed}  ", word(&member.device))
        });
        let label =
            format!("{rank:>3}  {machine}{:.3}  {:>6.0} MiB ", load.bubble_ratio, mib(load.bytes));
        let gauge = LineGauge::default().ratio(load.bubble_ratio.clamp(0.0, 1.0)).label(label);
        gauge.filled_symbol("█").unfilled_symbol("░").filled_style(Style::new().fg(Color::Red))
    }

    /// Draws a line per link.
    pub(super) fn draw_links(&self, frame: &mut Frame, area: Rect) {
        let block = Block::bordered()
            .title(" links: round trip, bytes of a step, rate while some were under way ");
        frame.render_widget(Paragraph::new(self.links.join("\n")).block(block), area);
    }
}

/// Describes the waits of a rank that take a part of the step worth naming, the longest first.
fn waits(rank: &RankMeans, step_s: f64) -> String {
    let waits = rank.waits().into_iter().filter(|(_, seconds)| *seconds >= NAMED * step_s);
    let waits = waits.map(|(who, seconds)| format!("{who} {:.1}", 1e3 * seconds));
    waits.collect::<Vec<_>>().join(", ")
}

/// Describes the links, both directions of each in a line.
fn links(means: &Means) -> Vec<String> {
    let mut lines = Vec::new();
    for (rank, from) in means.ranks.iter().enumerate() {
        let back = |to: u32| means.ranks.get(to as usize)?.links.get(&(rank as u32));
        let is_first = |to: u32| to as usize > rank || back(to).is_none();
        for (to, link) in from.links.iter().filter(|(to, _)| is_first(**to)) {
            let back = back(*to).map_or(String::new(), |link| format!("   back {}", used(link)));
            let trip = 1e3 * link.round_trip_s;
            lines.push(format!("{rank:>3} - {to:<3} {trip:>7.2} ms   there {}{back}", used(link)));
        }
    }
    lines
}

fn used(link: &Link) -> String {
    format!("{:>8.1} kB at {:>10}", link.sent_bytes / 1e3, link.shown_rate())
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 20)
}

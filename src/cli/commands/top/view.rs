//! The view of a run.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Sparkline};

use super::ranks::{Ranks, mib};
use crate::cli::parts::terminal::console::{count, duration, fixed};
use crate::cli::parts::terminal::progress::loss_of;
use crate::cli::parts::training::followed::Followed;
use crate::observe::Metrics;

/// Rows of the section about speed.
const SPEED: u16 = 4;
/// Smallest number of rows of the curve.
const CURVE: u16 = 8;

pub(crate) fn draw(frame: &mut Frame, run: &Followed) {
    let Some(last) = &run.last else {
        frame.render_widget(
            Paragraph::new(format!("{}\nno step yet", run.headline())),
            frame.area(),
        );
        return;
    };
    let ranks = Ranks::of(run, &last.ranks);
    let heights = ranks.heights();
    let rows = [
        Constraint::Length(2),
        Constraint::Min(CURVE),
        Constraint::Length(SPEED),
        Constraint::Max(heights[0]),
        Constraint::Max(heights[1]),
    ];
    let [head, curve, speed, loads, links] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(format!("{}\n{}", run.headline(), numbers(last))), head);
    losses(frame, run, curve);
    let title = format!(" tokens/s: {:.0} ", last.tokens_per_s);
    let n_shown = usize::from(speed.width.saturating_sub(2));
    let recent = &run.tokens_per_s[run.tokens_per_s.len().saturating_sub(n_shown)..];
    let line = Sparkline::default().data(recent).style(Style::new().fg(Color::Cyan));
    frame.render_widget(line.block(Block::bordered().title(title)), speed);
    ranks.draw(frame, loads);
    if !links.is_empty() {
        ranks.draw_links(frame, links);
    }
}

fn numbers(last: &Metrics) -> String {
    let mfu = last.mfu.map_or(String::new(), |mfu| format!("  mfu {mfu:.3}"));
    let seen = match last.tokens_seen {
        0 => String::new(), // not in every file
        n => format!("  {} tokens", count(n)),
    };
    let recovered = match last.recovery_s {
        Some(seconds) => format!("  {} recoveries, {}", last.recoveries, duration(seconds)),
        None => String::new(),
    };
    let most = last.ranks.iter().map(|rank| rank.bytes).max().unwrap_or(last.bytes);
    format!(
        "{}  grad norm {}  lr {:.2e}{seen}  bubble {:.3}  {:.0} MiB at most{mfu}{recovered}",
        loss_of(last.loss),
        fixed(last.grad_norm, 3),
        last.lr,
        last.bubble_ratio,
        mib(most)
    )
}

/// Draws the training loss and the validation loss over all steps.
fn losses(frame: &mut Frame, run: &Followed, area: Rect) {
    let all = run.losses.iter().chain(&run.validations);
    let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, loss)| {
        (low.min(*loss), high.max(*loss))
    });
    let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
    let (first, last) = (run.losses.first(), run.losses.last());
    let ends = [first, last].map(|point| point.map_or(0.0, |(step, _)| *step));
    let curve = |name: &'static str, points, color| {
        let curve = Dataset::default().name(name).marker(Marker::Braille);
        curve.graph_type(GraphType::Line).style(Style::new().fg(color)).data(points)
    };
    let mut curves = vec![curve("loss", &run.losses, Color::Yellow)];
    if !run.validations.is_empty() {
        curves.push(curve("validation", &run.validations, Color::Green));
    }
    let x = Axis::default().bounds(ends).labels(ends.map(|step| format!("{step:.0}")));
    let y = Axis::default().bounds([low, high]).labels([low, high].map(|l| format!("{l:.3}")));
    let chart = Chart::new(curves).x_axis(x).y_axis(y);
    frame.render_widget(chart.block(Block::bordered().title(" loss ")), area);
}

//! `chimera schedule compare`: schedules side by side, at one shape and cost.

use std::fmt::Write;

use anyhow::{Result, ensure};
use chimera_core::costs::is_shorter;
use chimera_core::fault::Class;
use chimera_core::render::report::unit_line;
use chimera_core::render::svg::{self, Compared};
use chimera_core::schedule::Shape;
use chimera_core::search::AUTO;
use clap::{Args, ValueHint};
use serde_json::json;

use crate::cli::parts::out::{FileFormat, OutArg, page_of};
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::drawing::Format;
use crate::cli::parts::schedule::entry::{Contender, ContenderRun, why_not};
use crate::cli::parts::schedule::shape::{ShapeArgs, schedule_name};
use crate::cli::parts::schedule::topology::SharedLinks;
use crate::cli::parts::terminal::console::{figure, warn};
use crate::run::{Several, class_of};
use crate::settings::RecomputedStages;

/// Compares all schedules, or those named, on one model
///
/// Costs are those of 1/D of the model, and lists have D numbers. A schedule with v stages per worker divides each by
/// v, so that all do the same work; only a message costs the same in all. The fastest comes first.
#[derive(Args)]
pub(crate) struct Compare {
    /// Schedules, if need be with their options, e.g. "chimera --scaling doubling", or timetable files (`.json`, `.csv`)
    /// [default: all schedules]
    #[arg(value_parser = schedule_name(), hide_possible_values = true, value_hint = ValueHint::AnyPath)]
    names: Vec<String>,
    /// Schedule to compare, as an option; may be repeated
    #[arg(short = 's', long = "schedule", value_name = "NAME", value_parser = schedule_name())]
    #[arg(hide_possible_values = true, value_hint = ValueHint::AnyPath)]
    more: Vec<String>,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    links: SharedLinks,
    /// Format to print [default: text, or the ending of --out]
    #[arg(long)]
    format: Option<Format>,
    #[command(flatten)]
    out: OutArg,
    /// Print JSON, as `--format json` does
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// The columns of the table.
pub(crate) const HEADS: [&str; 6] =
    ["makespan", "speed-up", "bubble ratio", "peak", "copies", "messages"];

/// Passes that are tried on every schedule: the last two only where moves take time, and all but
/// the first only under a memory limit.
const PASSES: [&str; 4] =
    ["--split-backward", "--recompute full --hoist auto", "--offload auto", "--bpipe"];

/// Explanation of the columns.
const ABOUT: &str = "Speed-up is over 1F1B; peak is the most micro-batches whose activations a worker \
                     holds; copies are those of the weights. All schedules cut the same model.";

/// Schedules that ran, fastest first, and those that could not.
pub(crate) struct Comparison {
    shape: Shape,
    pub(crate) runs: Vec<ContenderRun>,
    pub(crate) refused: Vec<(String, String)>,
    /// The error class if nothing ran: a refused schedule is worse than a shape that does not
    /// exist.
    class: Class,
    /// The makespan of 1F1B, relative to which speed-ups are computed.
    pub(crate) baseline: Option<f64>,
    /// The unit of time.
    unit: &'static str,
}

impl Compare {
    pub(crate) fn run(mut self) -> Result<()> {
        ensure!(
            !self.links.has_topology() || self.costs.has_ops(),
            "--topology is in seconds, and no option says how many an op takes: give --forward and --backward in seconds"
        );
        self.costs.links = self.links.clone();
        let format = match (self.json, self.format) {
            (true, _) => FileFormat::Json,
            (false, Some(format)) => format.into(),
            (false, None) => self.out.format()?.unwrap_or(FileFormat::Text),
        };
        let names: Vec<&String> = self.names.iter().chain(&self.more).collect();
        let entries = match &names[..] {
            [] => Contender::all_with_search(&self.shape)?,
            names => {
                names.iter().map(|n| Contender::parse(n, &self.shape)).collect::<Result<_>>()?
            }
        };
        self.warn_of_unread(&entries);
        let mut comparison = Comparison::of(&entries, &self.shape, &self.costs)?;
        if names.is_empty() {
            comparison.add_passes(&entries, &self.shape, &self.costs)?;
        }
        if comparison.runs.is_empty() {
            let message = format!("nothing to compare:{}", comparison.refusals());
            return Err(Several { class: comparison.class, message }.into());
        }
        let title = comparison.title();
        match format {
            FileFormat::Json => self.out.deliver(&format!("{:#}", comparison.json())),
            FileFormat::Csv => self.out.deliver(&comparison.csv()),
            FileFormat::Text => self.out.deliver(&comparison.text()),
            FileFormat::Html => self.out.deliver(&page_of(&title, &comparison.svg(&title))),
            _ => self.out.draw(format, &comparison.svg(&title)),
        }
    }

    /// Warns of common options that no entry reads, and of an entry's own options that it does not
    /// read.
    fn warn_of_unread(&self, entries: &[Contender]) {
        let unread: Vec<_> = entries.iter().map(|entry| entry.unread(&self.shape)).collect();
        let Some((first, others)) = unread.split_first() else { return };
        let is_for_all = |option: &str| self.shape.0.iter().any(|(key, _)| key == option);
        let by_all = |option: &str| {
            others.iter().all(|unread| unread.iter().any(|(other, _)| *other == option))
        };
        for (option, told) in first.iter().filter(|(option, _)| is_for_all(option)) {
            match others {
                [] => warn(told),
                _ if by_all(option) => {
                    warn(&format!("`{option}` has no effect: none of these schedules reads it"));
                }
                _ => {}
            }
        }
        let own = unread.iter().flatten().filter(|(option, _)| !is_for_all(option));
        own.for_each(|(_, told)| warn(told));
    }
}

impl Comparison {
    /// Runs all `entries` at one shape.
    pub(crate) fn of(
        entries: &[Contender],
        args: &ShapeArgs,
        costs: &CostArgs,
    ) -> Result<Comparison> {
        let said = args.0.drawn()?;
        let shape = said.shape();
        let (mut runs, mut refused, mut class) =
            (Vec::<ContenderRun>::new(), Vec::new(), Class::Usage);
        for entry in entries {
            match entry.run(costs) {
                Ok(run) => match run.other_shape(&shape) {
                    Some(other) => refused.push((run.label, other)),
                    None => match runs.iter().find(|other| other.is_like(&run)) {
                        Some(other) => refused.push((run.label, format!("as {}", other.label))),
                        None => runs.push(run),
                    },
                },
                Err(error) => match why_not(&error) {
                    Some(reason) => {
                        if class_of(&error) == Class::Schedule {
                            class = Class::Schedule;
                        }
                        refused.push((entry.label.clone(), reason));
                    }
                    None => return Err(error),
                },
            }
        }
        // Without a cap nothing has to recompute, so `auto` would not recompute anything.
        let one_in_turn = match said.passes.recompute_stages {
            RecomputedStages::Auto => "1f1b --in-turn 1 --recompute none --recompute-stages all",
            RecomputedStages::All | RecomputedStages::These(_) => "1f1b --in-turn 1",
        };
        let one_in_turn = Contender::parse(one_in_turn, args)?;
        let baseline = one_in_turn.run(&costs.without_cap()).ok().map(|run| run.makespan());
        let mut comparison =
            Comparison { shape, runs, refused, class, baseline, unit: costs.unit() };
        comparison.sort();
        Ok(comparison)
    }

    /// Sorts by makespan; a search comes first, which keeps to limits that others need not keep to.
    fn sort(&mut self) {
        self.runs.sort_by(|a, b| {
            let by = |of: fn(&ContenderRun) -> f64| of(a).total_cmp(&of(b));
            let is_search = |run: &ContenderRun| run.label != AUTO;
            is_search(a)
                .cmp(&is_search(b))
                .then(by(ContenderRun::makespan))
                .then(by(ContenderRun::peak))
        });
    }

    /// Adds each entry after every pass that makes it shorter, or lets it fit into memory.
    fn add_passes(
        &mut self,
        entries: &[Contender],
        args: &ShapeArgs,
        costs: &CostArgs,
    ) -> Result<()> {
        let is_like_another = |(label, reason): &(String, String), entry: &Contender| {
            *label == entry.label && reason.starts_with("as ")
        };
        let listed = entries.iter().filter(|entry| {
            entry.label != AUTO && !self.refused.iter().any(|other| is_like_another(other, entry))
        });
        let is_capped = args.0.over(&costs.memory.0).drawn()?.passes.memory_cap.is_some();
        let passes: &[&str] = match (is_capped, costs.has_transfers()) {
            (false, _) => &PASSES[..1],
            (true, false) => &PASSES[..2],
            (true, true) => &PASSES,
        };
        let mut runs = Vec::new();
        for (entry, pass) in listed.flat_map(|entry| passes.iter().map(move |pass| (entry, pass))) {
            let Some(passed) = entry.with_pass(pass, args)? else { continue };
            let Ok(run) = passed.run(costs) else { continue };
            let before = self.runs.iter().find(|run| run.label == entry.label);
            if before.is_none_or(|before| is_shorter(run.makespan(), before.makespan()))
                && run.other_shape(&self.shape).is_none()
            {
                runs.push(run);
            }
        }
        self.runs.extend(runs);
        self.sort();
        Ok(())
    }

    /// A title such as `Schedules at D = 4, N = 8`.
    pub(crate) fn title(&self) -> String {
        format!("Schedules at D = {}, N = {}", self.shape.depth, self.shape.n_micro_batches)
    }

    fn text(&self) -> String {
        let table: Vec<_> =
            self.runs.iter().map(|run| (&run.label, figures(run, self.baseline))).collect();
        let longest = table.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        let mut text = format!("{:longest$}", "");
        text.extend(HEADS.iter().map(|head| format!("  {head:>8}")));
        for (label, figures) in table {
            let _ = write!(text, "\n{label:longest$}");
            let columns = HEADS.iter().zip(figures);
            text.extend(
                columns.map(|(head, x)| format!("  {x:>width$}", width = head.len().max(8))),
            );
        }
        let _ = write!(text, "\n\n{}", unit_line(self.unit));
        if !self.refused.is_empty() {
            let _ = write!(text, "\n\nleft out:{}", self.refusals());
        }
        text
    }

    /// The table as CSV, with a row for each schedule that ran.
    fn csv(&self) -> String {
        let mut text = format!("schedule,{}\n", HEADS.join(",").replace(' ', "_"));
        for run in &self.runs {
            let label = run.label.replace('"', "\"\"");
            let _ = writeln!(text, "\"{label}\",{}", figures(run, self.baseline).join(","));
        }
        text
    }

    fn refusals(&self) -> String {
        self.refused.iter().map(|(label, reason)| format!("\n{label}: {reason}")).collect()
    }

    fn json(&self) -> serde_json::Value {
        let run = |run: &ContenderRun| {
            json!({
                "name": run.label, "makespan": run.makespan(),
                "speed_up": self.baseline.and_then(|makespan| run.speed_up(makespan)),
                "bubble_ratio": run.timeline.bubble_ratio(), "peak_micro_batches": run.peak(),
                "weight_copies": run.weight_copies(), "messages": run.n_messages(),
            })
        };
        let refused = |(name, reason): &(String, String)| json!({"name": name, "reason": reason});
        json!({
            "unit": self.unit, "depth": self.shape.depth, "micro_batches": self.shape.n_micro_batches,
            "schedules": self.runs.iter().map(run).collect::<Vec<_>>(),
            "left_out": self.refused.iter().map(refused).collect::<Vec<_>>(),
        })
    }

    /// Draws the table with its timelines.
    pub(crate) fn svg(&self, title: &str) -> String {
        let names: Vec<String> = self.runs.iter().map(drawn).collect();
        let entries: Vec<Compared> = (self.runs.iter().zip(&names))
            .map(|(run, name)| Compared {
                name,
                figures: figures(run, self.baseline)[1..].to_vec(), // the time axis shows the makespan
                timeline: &run.timeline,
            })
            .collect();
        let left_out =
            self.refused.iter().map(|(name, reason)| format!("left out: {name}: {reason}"));
        let notes = [unit_line(self.unit)].into_iter().chain(left_out);
        svg::compare((title, ABOUT), &HEADS[1..], &entries, &notes.collect::<Vec<_>>())
    }
}

/// Names a run, with the number of steps in its drawing if there are several, since the figures are
/// for one step.
fn drawn(run: &ContenderRun) -> String {
    match run.program.window().n_steps() {
        1 => run.label.clone(),
        n => format!("{} ({n} steps)", run.label),
    }
}

/// The columns of [`HEADS`]; speed-up is relative to a makespan of `baseline`.
pub(crate) fn figures(run: &ContenderRun, baseline: Option<f64>) -> [String; HEADS.len()] {
    let speed_up = baseline.and_then(|baseline| run.speed_up(baseline));
    [
        figure(run.makespan()),
        speed_up.map_or("-".to_string(), |ratio| format!("{ratio:.3}")),
        format!("{:.3}", run.timeline.bubble_ratio()),
        figure(run.peak()),
        run.weight_copies().to_string(),
        run.n_messages().to_string(),
    ]
}

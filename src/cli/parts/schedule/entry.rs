//! Schedules to compare on one model, for `compare` and the gallery.

mod made;

use anyhow::{Result, anyhow};
use chimera_core::analyze::{Refusal, Timeline};
use chimera_core::ids::StageId;
use chimera_core::program::Program;
use chimera_core::request::UnfitPasses;
use chimera_core::schedule::{SCHEDULES, Shape, Unfit};
use chimera_core::search::{AUTO, AutoError};
use clap::Parser;

use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::own_work::{FilledStep, WorkArgs};
use crate::cli::parts::schedule::shape::ShapeArgs;
use crate::settings::UnfitStages;
use crate::settings::schedules::{Named, is_file};

/// A schedule at a shape.
pub(crate) struct Contender {
    /// Name of the schedule and its own options, such as `chimera --scaling doubling`.
    pub(crate) label: String,
    words: Words,
}

#[derive(Parser, PartialEq)]
#[command(no_binary_name = true, disable_help_flag = true, args_override_self = true)]
struct Words {
    name: String,
    #[command(flatten)]
    shape: ShapeArgs,
}

impl Contender {
    /// Returns every schedule and variant once.
    pub(crate) fn all(shape: &ShapeArgs) -> Result<Vec<Contender>> {
        let mut entries: Vec<Contender> = Vec::new();
        for schedule in SCHEDULES {
            for options in schedule.variants() {
                let entry = Contender::parse(&format!("{} {options}", schedule.name()), shape)?;
                if entries.iter().all(|other| other.words != entry.words) {
                    entries.push(entry);
                }
            }
        }
        Ok(entries)
    }

    /// Returns the search, then every schedule and variant once.
    pub(crate) fn all_with_search(shape: &ShapeArgs) -> Result<Vec<Contender>> {
        let mut entries = vec![Contender::parse(AUTO, shape)?];
        entries.extend(Contender::all(shape)?);
        Ok(entries)
    }

    /// Returns the entry with the options of one more pass; `None` if it has them.
    pub(crate) fn with_pass(&self, pass: &str, shape: &ShapeArgs) -> Result<Option<Contender>> {
        let passed = Contender::parse(&format!("{} {pass}", self.label), shape)?;
        Ok(Some(passed).filter(|passed| passed.words != self.words))
    }

    /// Parses a file, which has its own shape, or a name with options, which override those of
    /// `shape`.
    pub(crate) fn parse(text: &str, shape: &ShapeArgs) -> Result<Contender> {
        let file = text.trim();
        if is_file(file) {
            let mut words = Words::try_parse_from(["--", file])?;
            words.shape = shape.passes();
            return Ok(Contender { label: file.to_string(), words });
        }
        let label = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = Words::try_parse_from(label.split(' '))
            .map_err(|error| anyhow!("`{text}`: {}", in_one_line(&error)))?;
        let shape = ShapeArgs(words.shape.0.over(&shape.0));
        Ok(Contender { label, words: Words { shape, ..words } })
    }

    /// Returns the options of `shape` and of the entry that it does not read, each with a warning.
    /// Returns nothing for an unknown name.
    pub(crate) fn unread(&self, shape: &ShapeArgs) -> Vec<(&'static str, String)> {
        let shape = ShapeArgs(self.words.shape.0.over(&shape.0));
        let (Ok(mut config), Ok(schedule)) = (shape.0.drawn(), self.words.name.parse::<Named>())
        else {
            return Vec::new();
        };
        config.schedule.name = schedule;
        shape.unread(&config)
    }

    /// Proves and simulates the entry, with the given costs for a D-th of the model.
    pub(crate) fn run(&self, costs: &CostArgs) -> Result<ContenderRun> {
        self.run_with(costs, &WorkArgs::default())
    }

    /// Calls [`run`](Contender::run), and fills the idle time.
    pub(crate) fn run_with(&self, costs: &CostArgs, work: &WorkArgs) -> Result<ContenderRun> {
        let plan = self.scheduled(costs)?;
        let (label, program) = (self.label.clone(), plan.prove()?);
        let timeline = match costs.links.simulate(&program, plan.costs())? {
            Some(timeline) => timeline,
            None => plan.simulate(&program),
        };
        Ok(match work.fill((&program, &timeline), &plan.how, plan.costs())? {
            Some(FilledStep { program, timeline, .. }) => ContenderRun { label, program, timeline },
            None => ContenderRun { label, program, timeline },
        })
    }
}

fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_string()
}

/// Returns the reason why an entry cannot run, in one line, if it is not a user error: the schedule
/// does not fit, or not into memory.
pub(crate) fn why_not(error: &anyhow::Error) -> Option<String> {
    let names_schedule = error.is::<Unfit>() || error.is::<Refusal>() || error.is::<AutoError>();
    let is_of_this_one = match error.downcast_ref() {
        Some(UnfitPasses::NothingToHoist(_)) => false,
        Some(UnfitPasses::HasMoves | UnfitPasses::IsWindow(_) | UnfitPasses::Window { .. }) => true,
        None => error.is::<UnfitStages>(),
    };
    let text = error.to_string();
    let line = text.lines().next().filter(|_| names_schedule || is_of_this_one)?;
    // The schedule's name is shown next to the reason.
    let reason =
        line.split_once(": ").filter(|_| names_schedule).map_or(line, |(_, reason)| reason);
    Some(reason.to_string())
}

/// The result of an entry.
pub(crate) struct ContenderRun {
    pub(crate) label: String,
    pub(crate) program: Program,
    pub(crate) timeline: Timeline,
}

impl ContenderRun {
    /// Returns true if it has the same program as another.
    pub(crate) fn is_like(&self, other: &ContenderRun) -> bool {
        let figures =
            |run: &ContenderRun| (run.program.schedule().to_string(), run.makespan(), run.peak());
        figures(self) == figures(other) && self.program.fingerprint() == other.program.fingerprint()
    }

    /// Makespan of one step; for an asynchronous schedule, its share of the window.
    pub(crate) fn makespan(&self) -> f64 {
        self.timeline.makespan() / f64::from(self.program.window().n_steps())
    }

    /// Number of messages in a step.
    pub(crate) fn n_messages(&self) -> usize {
        self.program.n_messages() / self.program.window().n_steps() as usize
    }

    /// The most micro-batches whose activations a worker holds.
    pub(crate) fn peak(&self) -> f64 {
        self.program.peak()
    }

    /// Number of copies of a stage's weights, over all workers and versions.
    pub(crate) fn weight_copies(&self) -> usize {
        let versions = self.program.weight_versions().iter().max().copied().unwrap_or(1);
        self.program.placement().replicas(StageId(0)).len() * versions as usize
    }

    /// Describes its shape if that differs from `shape`.
    pub(crate) fn other_shape(&self, shape: &Shape) -> Option<String> {
        let n = self.program.micro_batches_per_step();
        let d = self.program.placement().n_workers();
        let is_other = (d, n) != (shape.depth, shape.n_micro_batches);
        is_other.then(|| format!("it is made for D = {d}, N = {n}"))
    }

    /// Returns its speed-up over a run that takes `makespan`; `None` if it takes no time.
    pub(crate) fn speed_up(&self, makespan: f64) -> Option<f64> {
        Some(makespan / self.makespan()).filter(|ratio| ratio.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(options: &str) -> ShapeArgs {
        Words::try_parse_from(["x"].into_iter().chain(options.split_whitespace()))
            .expect("options")
            .shape
    }

    #[test]
    fn own_options_go_before_those_of_all() {
        let all = shape("--depth 8 --pipes 4");
        let entry = Contender::parse(" chimera  --scaling halving ", &all).expect("an entry");
        assert_eq!(entry.label, "chimera --scaling halving");
        assert!(entry.words.shape == shape("--depth 8 --pipes 4 --scaling halving"));
        let entry = Contender::parse("chimera --pipes 2 --depth 4", &all).expect("an entry");
        assert!(entry.words.shape == shape("--pipes 2 --depth 4"));
        assert!(Contender::parse("chimera --pipe 2", &all).is_err());
    }

    #[test]
    fn every_variant_of_the_table_is_listed_once() {
        let n_variants: usize = SCHEDULES.iter().map(|s| s.variants().len()).sum();
        assert_eq!(Contender::all(&shape("")).expect("entries").len(), n_variants);
        assert_eq!(Contender::all(&shape("--pipes 4")).expect("entries").len(), n_variants - 1);
    }
}

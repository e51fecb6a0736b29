//! Another layout for a run, by the measured speeds of its ranks.

use anyhow::Result;
use chimera_core::model::Partition;
use chimera_core::program::Program;
use chimera_core::timetable::Timetable;
use chimera_settings::{Config, Layout, Speeds};

use super::with_layout;
use crate::plan::Priced;

/// A layout by measured speeds.
#[derive(Clone, PartialEq, Debug)]
pub struct Relaid {
    /// The layers of each stage.
    pub layout: Partition,
    /// The simulated time of a step with the present layout, divided by that with this one.
    pub gain: f64,
}

/// Returns the simulated compute of each worker in a step, in the time that a worker of speed 1 takes.
///
/// # Errors
/// If the profile lacks a layer of the model.
pub fn work(config: &Config, priced: &Priced, program: &Program) -> Result<Vec<f64>> {
    let cuts = config.cuts(priced.model(), program.placement().n_stages())?;
    Ok(priced.timeline(config, &cuts, program, Vec::new())?.busy())
}

/// Returns the layout that `auto` has for ranks of these speeds, by the timetable that a search has
/// `found`, if any. `config` and `program` are those of the run.
///
/// # Errors
/// As [`with_layout`].
pub fn relaid(
    config: &Config,
    priced: &Priced,
    program: &Program,
    (speeds, found): (Speeds, Option<&Timetable>),
) -> Result<Relaid> {
    let n_stages = program.placement().n_stages();
    let mut config = config.clone();
    config.schedule.speeds = Some(speeds);
    let before = config.cuts(priced.model(), n_stages)?;
    let before = priced.makespan(&config, &before, program)?;
    config.schedule.layout = Layout::Auto;
    let config = with_layout(config, priced, found)?;
    let cuts = config.cuts(priced.model(), n_stages)?;
    let gain = before / priced.makespan(&config, &cuts, program)?;
    Ok(Relaid { layout: Partition::of(&cuts), gain })
}

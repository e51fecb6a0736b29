//! The proof of a timetable, and its figures.

use std::path::Path;

use anyhow::{Context, Result};
use chimera_core::analyze::{Timeline, peak_kept};
use chimera_core::interchange::ReadError;
use chimera_core::op::{Kind, Op};
use chimera_core::program::{Instr, Program};

use super::costs::{CostArgs, unit_line};
use super::drawing::edges;
use super::scheduled::Scheduled;
use super::shape::PassArgs;
use crate::cli::parts::terminal::console::{counted, figure};
use crate::formats::timetable::read;
use crate::plan::by_file_name;
use crate::settings::schedules::Named;

/// Proves the timetable in a file; errors name the file.
pub(crate) fn proven(
    file: &Path,
    passes: &PassArgs,
    costs: &CostArgs,
) -> Result<(Scheduled, Program)> {
    let timetable = match read(file) {
        Err(unreadable @ ReadError::Unreadable { .. }) => return Err(unreadable.into()),
        read => read.map_err(anyhow::Error::from),
    };
    let prove = |timetable| {
        let plan = Scheduled::of_timetable(timetable, passes, costs)?;
        let program = plan.prove()?;
        Ok((plan, program))
    };
    let named = |error| by_file_name(error, &Named::File(file.to_path_buf()));
    timetable.and_then(prove).map_err(named).with_context(|| file.display().to_string())
}

/// Describes the proof of a program, and its figures.
pub(crate) fn proof(program: &Program, timeline: &Timeline, costs: &CostArgs) -> String {
    format!(
        "proven safe: every pass once, no deadlock with {} per channel, reductions in one order\n{}",
        counted(f64::from(program.channel_bound()), "message", "s"),
        summary(program, timeline, costs.unit()),
    )
}

/// Returns a line about a simulated step or window, and one about its unit of time.
pub(crate) fn summary(program: &Program, timeline: &Timeline, unit: &str) -> String {
    let makespan = figure(timeline.makespan());
    let steps = match program.window().n_steps() {
        1 => String::new(),
        n => format!(" of {n} steps"),
    };
    let kept = match peak_kept(program).into_iter().fold(0.0, f64::max) {
        0.0 => String::new(),
        most => format!("checkpointed inputs of at most {most}, "),
    };
    let versions = match program.weight_versions().iter().max() {
        None | Some(1) => String::new(),
        Some(most) => format!("at most {most} versions of the weights, "),
    };
    let graph = edges(program.rules().graph()).map_or_else(String::new, |e| format!("{e}\n"));
    format!(
        "{}: makespan {makespan}{steps}, bubble ratio {:.4}, peak activations of {}, {kept}{versions}{}\n{graph}{}",
        named(program),
        timeline.bubble_ratio(),
        counted(program.peak(), "micro-batch", "es"),
        counted(program.n_messages() as f64, "message", "s"),
        unit_line(unit),
    )
}

/// Names the schedule, and how it cuts micro-batches.
pub(crate) fn named(program: &Program) -> String {
    let cut = match (program.rules().n_slices(), program.units_per_micro()) {
        (1, 1) => String::new(),
        (1, 2) if !cuts_forwards(program) => ", backwards halved".to_string(),
        (1, n_parts) => format!(", in {n_parts} parts"),
        (n_slices, _) => format!(", sequences in {n_slices} slices"),
    };
    format!("{}{cut}", program.schedule())
}

/// Returns true if some forward processes a part of a micro-batch.
fn cuts_forwards(program: &Program) -> bool {
    let n_units = program.units_per_micro();
    let is_cut = |op: &Op| {
        let units = op.span.units();
        op.kind == Kind::Forward
            && (!units.start.is_multiple_of(n_units) || !units.end.is_multiple_of(n_units))
    };
    program.rows().iter().flatten().any(|instr| match instr {
        Instr::Run(cell) => cell.ops().any(|op| is_cut(&op)),
        _ => false,
    })
}

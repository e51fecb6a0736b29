//! Reports of a proven, simulated program in words: the lines that the command prints, so that other
//! front ends print the same.

use crate::analyze::{IdleTime, Timeline, peak_kept};
use crate::ir::graph::StageGraph;
use crate::ir::notation::significant;
use crate::ir::op::{Kind, Op};
use crate::ir::timetable::Timetable;
use crate::program::{Instr, Program};

/// The facts that a proof has established, and the [`summary`].
pub fn proof(program: &Program, timeline: &Timeline, unit: &str) -> String {
    format!("{}\n{}", proven(program), summary(program, timeline, unit))
}

/// The facts that a proof has established, in a line.
pub fn proven(program: &Program) -> String {
    format!(
        "proven safe: every pass once, no deadlock with {} per channel, reductions in one order",
        counted(f64::from(program.channel_bound()), "message", "s"),
    )
}

/// A line about a simulated step or window, and one about its unit of time.
pub fn summary(program: &Program, timeline: &Timeline, unit: &str) -> String {
    let makespan = significant(timeline.makespan(), 6);
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

/// The name of the schedule, and how it cuts micro-batches.
pub fn named(program: &Program) -> String {
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

/// A title such as `chimera, D = 4, N = 8; unit of time: a forward of a micro-batch through 1/D of
/// the model`.
pub fn title(timetable: &Timetable, unit: &str) -> String {
    let (d, n) = (timetable.rows.len(), timetable.micro_batches_per_step());
    let steps = match timetable.update.n_steps() {
        0 | 1 => String::new(),
        steps => format!(", {steps} steps"),
    };
    let graph = edges(&timetable.graph).map_or_else(String::new, |edges| format!(", {edges}"));
    format!("{}, D = {d}, N = {n}{steps}{graph}; {}", timetable.schedule, unit_line(unit))
}

/// The causes of a bubble that occur, largest first, in a line.
pub fn by_cause(what: &str, bubble: &IdleTime) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let seen = bubble.largest().into_iter();
    let seen: Vec<String> =
        seen.map(|(name, share)| format!("{name} {}", percent(share))).collect();
    match seen.len() {
        0 => format!("{what}: none"),
        _ => format!("{what}: {} = {}", percent(bubble.total()), seen.join(" + ")),
    }
}

/// Stages that are not a chain, such as `edges 0-1, 0-2, 1-2; losses 2`.
fn edges(graph: &StageGraph) -> Option<String> {
    (!graph.is_chain()).then(|| format!("edges {graph}"))
}

/// The line of a report about its unit of time.
pub fn unit_line(unit: &str) -> String {
    format!("unit of time: {unit}")
}

/// A number with its noun: `1 message`, `2 messages`.
pub fn counted(n: f64, unit: &str, plural: &str) -> String {
    format!("{n} {unit}{}", if n == 1.0 { "" } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_stand_in_order_of_size_and_small_ones_are_left_out() {
        let bubble = IdleTime { message: 0.05, sync: 0.2, other: 1e-5, ..IdleTime::default() };
        assert_eq!(
            by_cause("bubble", &bubble),
            "bubble: 25.0 % = step sync 20.0 % + message 5.0 %"
        );
        assert_eq!(by_cause("bubble", &IdleTime::default()), "bubble: none");
    }
}

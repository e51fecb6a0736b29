//! The pass that removes the border between steps: a worker begins the next step as soon as its own
//! part of the last is done and the weights that it reads are updated.

use crate::ir::op::{Cell, Op};
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

named_values! {
    /// The border between two steps.
    pub enum Border: "border" {
        /// All workers end a step before any begins the next.
        Step = "step",
        /// Only the order that values and weights require: [`free_border`].
        Free = "free",
    }
}

/// A window of `n_steps` steps of a synchronous timetable, one after the other on every worker, in
/// which each stage is updated separately ([`Update::EachStep`]). A timetable without a flush stays
/// as it is.
///
/// A schedule that gains time by ending its step at different times (ZB-H2, ZB-V, V-Half) keeps
/// that gain at each border.
pub fn free_border(timetable: Timetable, n_steps: u32) -> Timetable {
    if timetable.update != Update::Flush {
        return timetable;
    }
    Timetable { update: Update::EachStep { n_steps }, ..timetable.repeated(n_steps) }
}

/// The first step of a window, to be trained separately.
pub(super) fn first_step(window: &Timetable) -> Timetable {
    let n_steps = window.update.n_steps();
    let n_units = window.n_units() / n_steps;
    let is_of_it = |op: &Op| op.span.start < n_units;
    let of_cell = |cell: &Cell| match *cell {
        Cell::Pair(a, b) if is_of_it(&a) && is_of_it(&b) => Some(Cell::Pair(a, b)),
        cell => cell.ops().find(is_of_it).map(Cell::One),
    };
    Timetable {
        n_micro_batches: window.n_micro_batches / n_steps,
        update: Update::Flush,
        rows: window.rows.iter().map(|row| row.iter().filter_map(of_cell).collect()).collect(),
        ..window.clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::analyze::simulate;
    use crate::costs::UniformCosts;
    use crate::lower::{Lowering, Passes, lower};
    use crate::schedule::{SCHEDULES, Shape, find};

    /// The times of `n_steps` steps without a border, and with one.
    fn makespans(name: &str, depth: usize, n: u32, n_steps: u32) -> (f64, f64) {
        let plain = find(name).expect("known").timetable(&Shape::new(depth, n)).expect("fits");
        let share = depth as f64 / plain.placement.n_stages() as f64;
        let costs = UniformCosts::new(1.0, 2.0, 0.0).share(share).per_units(plain.units_per_micro);
        let how = Lowering::default();
        let passes = Passes { free_border: Some(n_steps), ..Passes::default() };
        let free = passes.apply(plain.clone(), &how, &costs).expect("sound");
        let makespan =
            |timetable| simulate(&lower(timetable, &how).expect("proven"), &costs).makespan();
        (makespan(&free), f64::from(n_steps) * makespan(&plain))
    }

    /// Formulae of Zero Bubble Pipeline Parallelism and of its controllable-memory schedules,
    /// reproduced by simulation.
    #[test]
    fn schedules_that_end_askew_keep_their_gain_at_each_border() {
        for (depth, n, t) in [(4, 8, 4), (4, 7, 3), (8, 16, 4), (2, 6, 5), (4, 4, 4), (6, 8, 3)] {
            let d = depth as f64;
            let n_ = f64::from(n);
            let t_ = f64::from(t);
            let gap = (2.0 * d - 1.0 - n_).max(0.0);
            let h2 = 3.0 * n_ * t_ + (d - 1.0) + (t_ - 1.0) * gap + (gap / 2.0).floor();
            assert_eq!(makespans("zb-h2", depth, n, t).0, h2, "zb-h2, {depth}, {n}, {t}");
        }
        assert_eq!(makespans("zb-h2", 4, 8, 4), (99.0, 108.0));
        assert_eq!(makespans("zb-h2", 8, 16, 4), (199.0, 220.0));
        assert_eq!(makespans("zb-h1", 4, 8, 4), (4.0 * 27.0, 4.0 * 27.0));
        // An op of each of its 2D stages takes half a unit.
        assert_eq!(makespans("zb-v", 4, 8, 4), (195.0 / 2.0, 204.0 / 2.0));
        assert_eq!(makespans("zb-v", 8, 16, 4), (391.0 / 2.0, 412.0 / 2.0));
    }

    #[test]
    fn no_schedule_takes_longer_without_a_border() {
        for schedule in SCHEDULES {
            let (free, bound) = makespans(schedule.name(), 4, 8, 3);
            assert!(free <= bound + 1e-9, "{}: {free} of {bound}", schedule.name());
        }
    }
}

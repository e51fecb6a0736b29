//! The closed form of a step's time in Chimera's paper (Li & Hoefler, SC 2021, equation 1), to
//! compare with a simulation.
//!
//! `T = F C_f + B C_b + c C_m + R`, with C_f forwards and C_b backwards on the critical path; C_m
//! messages of time c, one after each of these passes and none of them hidden; and R, the longest
//! part of any stage's gradient reduction that compute does not hide. All stages take as long as
//! the slowest. A reduction over r replicas is Rabenseifner's, `2 log2(r) alpha + 2 (r - 1) / r
//! beta L`, and begins when the last backward of its stage is done. The paper writes `(F + c) C_f +
//! (B + c) C_b + R`. This is the same unless some pass is of a part of a micro-batch, or of
//! several.

use rustc_hash::FxHashMap;

use super::network::Link;
use super::simulate::simulate;
use super::timeline::{Event, Timeline, Work};
use crate::costs::{Costs, UniformCosts};
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::op::{Kind, Op};
use crate::program::{Instr, Program};

/// The terms of the closed form, in the unit of the costs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ClosedForm {
    /// Forwards on the critical path, C_f, in micro-batches.
    pub forwards: f64,
    /// Backwards on it, C_b.
    pub backwards: f64,
    /// Messages on it, C_m: one after each forward and each backward or input half of one, for any
    /// part of a micro-batch.
    pub messages: f64,
    /// Time of a forward of the slowest stage, F.
    pub forward: f64,
    /// Time of a backward of the slowest stage, with its recomputation, B.
    pub backward: f64,
    /// Time of a message, c.
    pub message: f64,
    /// The part of a gradient reduction that compute does not hide, R.
    pub reduction: f64,
}

/// The gradients that are reduced, and the network they are reduced on.
#[derive(Clone, Copy, Debug)]
pub struct Reduced<'r> {
    /// Bytes of the gradients of each stage.
    pub bytes: &'r [f64],
    /// Number of pipeline groups, W.
    pub width: usize,
    /// The slowest link between replicas.
    pub link: Link,
}

impl ClosedForm {
    /// The closed form of a step of `program`, with ops and messages at `costs`.
    pub fn of(program: &Program, costs: &impl Costs, reduced: Reduced<'_>) -> ClosedForm {
        let mut form = ClosedForm::default();
        let units = f64::from(program.units_per_micro());
        let micro_batches = |op: &Op| f64::from(op.span.len) / units;
        let mut backwards: FxHashMap<(StageId, Kind), f64> = FxHashMap::default();
        for (worker, row) in (0..).map(WorkerId).zip(program.rows()) {
            for instr in row {
                match instr {
                    Instr::Run(cell) => {
                        for op in cell.ops() {
                            let takes = costs.op(worker, &op) / micro_batches(&op);
                            let slowest = match op.kind {
                                Kind::Forward => &mut form.forward,
                                // Moves run in parallel to compute, and the counts below leave them
                                // out.
                                Kind::Offload
                                | Kind::Reload
                                | Kind::Keep
                                | Kind::Return
                                | Kind::Work(_) => continue,
                                kind => backwards.entry((op.stage, kind)).or_default(),
                            };
                            *slowest = slowest.max(takes);
                        }
                    }
                    Instr::Send(token, _) => form.message = form.message.max(costs.message(token)),
                    _ => {}
                }
            }
        }
        let of_stage = |(stage, _): &(StageId, Kind)| {
            let takes = |kind| backwards.get(&(*stage, kind)).copied().unwrap_or(0.0);
            // A backward is whole or split: a stage may have both, but a micro-batch only one.
            let halves = takes(Kind::BackwardInput) + takes(Kind::BackwardWeight);
            takes(Kind::Recompute) + takes(Kind::Backward).max(halves)
        };
        form.backward = backwards.keys().map(of_stage).fold(0.0, f64::max);
        let timeline = form.balanced(program);
        for event in timeline.critical_path() {
            let Work::Cell(cell) = event.work else { continue };
            for op in cell.ops() {
                let (passes, messages) = match op.kind {
                    Kind::Forward => (&mut form.forwards, 1.0),
                    Kind::Backward | Kind::BackwardInput => (&mut form.backwards, 1.0),
                    Kind::BackwardWeight => (&mut form.backwards, 0.0),
                    Kind::Recompute => continue, // part of the backward
                    Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => {
                        continue;
                    }
                };
                let is_half = matches!(op.kind, Kind::BackwardInput | Kind::BackwardWeight);
                *passes += micro_batches(&op) / if is_half { 2.0 } else { 1.0 };
                form.messages += messages;
            }
        }
        form.reduction = exposed(program, &timeline, reduced);
        form
    }

    /// The time of a step, T.
    pub fn step(&self) -> f64 {
        let ClosedForm { forwards, backwards, messages, .. } = *self;
        let compute = self.forward * forwards + self.backward * backwards;
        compute + self.message * messages + self.reduction
    }

    /// A step of equal stages without messages, which has the critical path that is counted.
    fn balanced(&self, program: &Program) -> Timeline {
        let costs = UniformCosts::new(self.forward, self.backward, 0.0);
        let costs = UniformCosts { recompute: 0.0, ..costs }.per_units(program.units_per_micro());
        simulate(program, &costs)
    }
}

/// The longest part of any stage's reduction after all compute.
fn exposed(program: &Program, timeline: &Timeline, reduced: Reduced<'_>) -> f64 {
    let mut last: FxHashMap<StageId, f64> = FxHashMap::default();
    for Event { work, end, .. } in &timeline.events {
        let Work::Cell(cell) = work else { continue };
        for op in cell.ops().filter(|op| op.kind.adds_gradient()) {
            let last = last.entry(op.stage).or_default();
            *last = last.max(*end);
        }
    }
    let makespan = timeline.makespan();
    let of_bucket = program.buckets_of_update().iter().filter_map(|bucket| {
        let [stage] = bucket.stages[..] else { return None };
        let replicas = (bucket.members.len() * reduced.width) as f64;
        let bytes = reduced.bytes.get(stage.index()).copied().unwrap_or(0.0);
        if replicas < 2.0 || bytes == 0.0 {
            return None;
        }
        let sent = 2.0 * (replicas - 1.0) / replicas * bytes;
        let takes = reduced.link.takes(2.0 * replicas.log2(), sent);
        let hidden = makespan - last.get(&stage).copied().unwrap_or(makespan);
        Some((takes - hidden).max(0.0))
    });
    of_bucket.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{Lowering, lower};
    use crate::schedule::{Scaling, Shape, find};

    fn form(schedule: &str, depth: usize, reduced: Reduced<'_>) -> ClosedForm {
        let timetable = find(schedule).expect("known").timetable(&Shape::new(depth, depth as u32));
        let program = lower(&timetable.expect("fits"), &Lowering::default()).expect("proven");
        let costs = UniformCosts::new(1.0, 2.0, 0.5).per_units(program.units_per_micro());
        ClosedForm::of(&program, &costs, reduced)
    }

    /// Section 3.4 of the paper.
    #[test]
    fn passes_on_the_critical_path_are_the_paper_s() {
        let none = Reduced { bytes: &[], width: 1, link: Link::default() };
        for (schedule, forwards, backwards) in
            [("chimera", 6.0, 10.0), ("gpipe", 11.0, 11.0), ("1f1b", 11.0, 11.0)]
        {
            let form = form(schedule, 6, none);
            assert_eq!((form.forwards, form.backwards), (forwards, backwards), "{schedule}");
            let step = forwards * 1.5 + backwards * 2.5;
            assert_eq!(form.step(), step, "{schedule}");
        }
    }

    /// A message follows each slice of a sequence, and each backward of half the samples.
    #[test]
    fn parts_of_micro_batches_are_followed_by_messages_of_their_own() {
        let halving = Shape { scaling: Scaling::Halving, ..Shape::new(4, 8) };
        let sliced = |n_slices| Shape { n_slices, ..Shape::new(4, 4) };
        let cut = [("chimera", halving), ("seq1f1b", sliced(4)), ("seq1f1b", sliced(16))];
        for (schedule, shape) in cut {
            let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
            let program = lower(&timetable, &Lowering::default()).expect("proven");
            let costs = UniformCosts::new(1.0, 2.0, 0.5).per_units(program.units_per_micro());
            let none = Reduced { bytes: &[], width: 1, link: Link::default() };
            let form = ClosedForm::of(&program, &costs, none);
            let makespan = simulate(&program, &costs).makespan();
            assert!(form.messages > form.forwards + form.backwards, "{schedule}");
            assert!(form.step() >= makespan, "{schedule}: {} below {makespan}", form.step());
        }
    }

    /// DualPipe has whole and split backwards on each stage.
    #[test]
    fn whole_backwards_and_halves_of_one_stage_do_not_add_up() {
        for (schedule, depth) in [("dualpipe", 4), ("dualpipe", 8), ("dualpipe-v", 4)] {
            let shape = Shape::new(depth, 2 * depth as u32);
            let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
            let program = lower(&timetable, &Lowering::default()).expect("proven");
            let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(program.units_per_micro());
            let none = Reduced { bytes: &[], width: 1, link: Link::default() };
            let form = ClosedForm::of(&program, &costs, none);
            assert_eq!(form.backward, 2.0, "{schedule}, {depth}");
            let makespan = simulate(&program, &costs).makespan();
            assert_eq!(form.step(), makespan, "{schedule}, {depth}");
        }
    }

    /// Four replicas take 2 log2(4) + 2 * 3/4 * 8 = 16. The last stage of 1F1B is done three
    /// backwards before the first.
    #[test]
    fn reductions_count_as_far_as_compute_does_not_hide_them() {
        let link = Link { alpha: 1.0, beta: 1.0 };
        let all = form("chimera", 4, Reduced { bytes: &[8.0; 4], width: 2, link });
        assert_eq!(all.reduction, 16.0);
        let alone = form("1f1b", 4, Reduced { bytes: &[0.0, 8.0, 0.0, 0.0], width: 1, link });
        assert_eq!(alone.reduction, 0.0);
        let last = form("1f1b", 4, Reduced { bytes: &[0.0, 0.0, 0.0, 8.0], width: 4, link });
        assert_eq!(last.reduction, 16.0 - 6.0);
    }
}

//! The versions of the weights that each worker holds.

use rustc_hash::FxHashMap;

use super::refusal::Reason;
use crate::effects::{Rules, Token, TokenKind, Version};
use crate::ir::few::Few;
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::update::Window;

/// Follows the versions of every stage on every worker. A version is the number of updates that
/// made it, counted from the start of the window.
pub(crate) struct Versions {
    window: Window,
    stages: FxHashMap<(WorkerId, StageId), HeldStage>,
    peaks: Vec<u32>,
}

/// One stage on one worker.
#[derive(Default)]
struct HeldStage {
    n_updates: u32,
    /// Number of micro-batch units that each version is kept for.
    kept: FxHashMap<u32, u32>,
}

impl Versions {
    pub(crate) fn new(window: Window, n_workers: usize) -> Versions {
        Versions { window, stages: FxHashMap::default(), peaks: vec![1; n_workers] }
    }

    /// Runs a cell on the versions of its tokens. Returns the versions of the tokens it makes.
    /// Tokens of other kinds carry 0.
    pub(crate) fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        eaten: Few<u32>,
        rules: &Rules,
    ) -> Result<Few<u32>, Reason> {
        let is_version =
            |token: &Token| matches!(token.kind, TokenKind::Version | TokenKind::RecomputedVersion);
        let mut eaten = eaten.into_iter();
        let mut made = Few::new();
        for op in cell.ops() {
            let effects = rules.effects(&op);
            // The tokens of this op; the next ones are those of the other op of a pair.
            let tokens = effects.eats.iter().zip(&mut eaten);
            let versions = tokens.filter(|(token, _)| is_version(token)).map(|(_, v)| v);
            let versions: Few<u32> = versions.collect();
            let read = match effects.reads.first() {
                Some(weights) => self.read(worker, &op, weights.version)?,
                None => 0, // not read, or never changed
            };
            let versions = match op.kind {
                Kind::Forward => {
                    if rules.keeps_versions() && !effects.reads.is_empty() {
                        self.keep(worker, &op, read);
                    }
                    Few::repeat(read, usize::from(op.span.len))
                }
                Kind::Recompute => versions,
                Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => {
                    Few::new()
                }
                Kind::Backward | Kind::BackwardInput | Kind::BackwardWeight => {
                    versions.into_iter().for_each(|v| self.free(worker, op.stage, v));
                    Few::new()
                }
            };
            let mut versions = versions.into_iter();
            let value = |token| if is_version(token) { versions.next().unwrap_or(0) } else { 0 };
            made.extend(effects.makes.iter().map(value));
        }
        Ok(made)
    }

    /// The version that an op reads, which must be live.
    fn read(&mut self, worker: WorkerId, op: &Op, version: Version) -> Result<u32, Reason> {
        let made = self.stages.entry((worker, op.stage)).or_default().n_updates;
        let version = match version {
            Version::Newest => made,
            Version::Made(version) => version,
            Version::Predicted(version) if version > made => {
                // The prediction lives beside the newest version, the only one that is kept.
                let peak = &mut self.peaks[worker.index()];
                *peak = 2.max(*peak);
                return Ok(version);
            }
            Version::Predicted(version) => version,
        };
        // The newest version is live, and the ones before it that the rule keeps.
        let newest = version + self.window.update().row().n_previous();
        if !(version..=newest).contains(&made) {
            return Err(Reason::Version { op: *op, version, made });
        }
        Ok(version)
    }

    /// Keeps the version that a forward has read for its backward.
    fn keep(&mut self, worker: WorkerId, op: &Op, version: u32) {
        let stage = self.stages.entry((worker, op.stage)).or_default();
        *stage.kept.entry(version).or_default() += u32::from(op.span.len);
    }

    /// The backward of one unit is done with its version.
    fn free(&mut self, worker: WorkerId, stage: StageId, version: u32) {
        let kept = &mut self.stages.entry((worker, stage)).or_default().kept;
        if let Some(n) = kept.get_mut(&version) {
            *n -= 1;
            if *n == 0 {
                kept.remove(&version);
            }
        }
    }

    /// An update makes the next version.
    pub(crate) fn update(
        &mut self,
        worker: WorkerId,
        id: StageId,
        update: u32,
    ) -> Result<(), Reason> {
        let is_double = self.window.update().row().n_previous() > 0;
        let stage = self.stages.entry((worker, id)).or_default();
        if stage.n_updates != update {
            let made = stage.n_updates;
            let reason = format!("update {update} of {id} comes after {made} update(s) of it");
            return Err(Reason::Synchronisation(reason));
        }
        stage.n_updates += 1;
        let newest = stage.n_updates;
        let extra = |version| u32::from(!stage.kept.contains_key(&version));
        let keeps_previous = is_double && newest < self.window.n_updates();
        let n_extra = extra(newest) + if keeps_previous { extra(newest - 1) } else { 0 };
        let n_versions = stage.kept.len() as u32 + n_extra;
        let peak = &mut self.peaks[worker.index()];
        *peak = n_versions.max(*peak);
        Ok(())
    }

    /// The most versions of a stage that each worker held so far.
    pub(crate) fn peaks(self) -> Vec<u32> {
        self.peaks
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{prove, tests::window};
    use super::*;
    use crate::ir::timetable::Timetable;
    use crate::ir::update::Update;
    use crate::lower::{Lowering, lower};
    use crate::program::Instr;
    use crate::schedule::{Shape, find};

    /// The sum and update of a stage, moved after the next backward.
    #[test]
    fn an_update_that_would_take_in_gradients_of_the_next_is_refused() {
        for schedule in ["pipedream", "pipedream-2bw"] {
            let whole = window(schedule);
            let is_backward = |i: &Instr| match i {
                Instr::Run(cell) => cell.ops().any(|op| op.kind.adds_gradient()),
                _ => false,
            };
            for (w, row) in whole.rows.iter().enumerate() {
                for at in (0..row.len()).filter(|at| matches!(row[*at], Instr::Reduce(_))) {
                    let Some(next) = row[at..].iter().position(is_backward) else { continue };
                    let mut late = whole.clone();
                    late.rows[w][at..=at + next].rotate_left(3);
                    let refusal = prove(&late, None).err().expect("gradients mixed").to_string();
                    assert!(refusal.contains("comes before the update of"), "{refusal}");
                    let mut early = whole.clone();
                    let last = row[..at].iter().rposition(is_backward).expect("a backward");
                    early.rows[w][last..at + 3].rotate_right(3);
                    let refusal = prove(&early, None).err().expect("a gradient lost").to_string();
                    assert!(refusal.contains("comes after the reduction of"), "{refusal}");
                }
            }
        }
    }

    #[test]
    fn a_version_that_is_not_there_is_refused() {
        let timetable = |schedule: &str, n| {
            let shape = Shape::new(4, n);
            find(schedule).expect("known").timetable(&shape).expect("fits")
        };
        // GPipe runs all forwards first; 1F1B runs ahead of steps shorter than the pipe.
        for (schedule, n, n_steps) in [("gpipe", 12, 3), ("dapple", 6, 3)] {
            let update = Update::DoubleBuffer { n_steps };
            let ahead = Timetable { update, ..timetable(schedule, n) };
            let refusal =
                lower(&ahead, &Lowering::default()).map(drop).expect_err("two steps ahead");
            assert!(
                matches!(refusal.reason, Reason::Version { version: 1, made: 0, .. }),
                "{refusal}"
            );
        }
        let two_steps =
            Timetable { update: Update::DoubleBuffer { n_steps: 2 }, ..timetable("gpipe", 12) };
        let refusal = lower(&two_steps, &Lowering::default());
        assert!(refusal.is_ok(), "both steps read the first version");
    }

    #[test]
    fn a_window_without_whole_updates_is_refused() {
        let plain = find("dapple").expect("known").timetable(&Shape::new(2, 3)).expect("fits");
        let reason = |update, how: &Lowering| {
            let timetable = Timetable { update, ..plain.clone() };
            lower(&timetable, how).map(drop).expect_err("unsound").reason
        };
        let untied = Lowering::default();
        for n_steps in [0, 2] {
            let window = Reason::Window { n_micro_batches: 3, n_steps };
            assert_eq!(reason(Update::Stash { n_steps }, &untied), window);
            assert_eq!(reason(Update::DoubleBuffer { n_steps }, &untied), window);
        }
        let tied = Lowering { tied: vec![vec![StageId(0), StageId(1)]], ..untied };
        assert_eq!(reason(Update::Stash { n_steps: 1 }, &tied), Reason::TiedVersions);
    }

    #[test]
    fn an_op_of_two_updates_is_refused() {
        let shape = Shape { window: 1, ..Shape::new(1, 2) };
        let mut timetable = find("pipedream").expect("known").timetable(&shape).expect("fits");
        let Cell::One(op) = &mut timetable.rows[0][0] else { panic!("a pair") };
        op.span.len = 2;
        let wide = *op;
        let refusal = lower(&timetable, &Lowering::default()).map(drop).expect_err("two updates");
        assert_eq!(refusal.reason, Reason::TwoUpdates(wide));
    }

    /// 1F1B with a last worker that runs each forward in a pair with the backward before it. In
    /// either order of the pair, backwards use the versions that their own forwards read.
    #[test]
    fn ops_of_a_pair_have_their_own_versions() {
        let shape = Shape { window: 6, ..Shape::new(2, 1) };
        let plain = find("pipedream").expect("known").timetable(&shape).expect("fits");
        let versions = |is_forward_first: bool| {
            let mut paired = plain.clone();
            let ops: Vec<Op> = plain.rows[1].iter().flat_map(Cell::ops).collect();
            let [first, between @ .., last] = &ops[..] else { panic!("a row of few ops") };
            let pairs = between.chunks(2).map(|pair| {
                if is_forward_first {
                    Cell::Pair(pair[1], pair[0])
                } else {
                    Cell::Pair(pair[0], pair[1])
                }
            });
            let ends = [Cell::One(*first), Cell::One(*last)];
            paired.rows[1] = [&ends[..1], &pairs.collect::<Vec<_>>(), &ends[1..]].concat();
            lower(&paired, &Lowering::default()).expect("proven").weight_versions().to_vec()
        };
        assert_eq!(versions(true), versions(false));
        assert_eq!(versions(true)[1], 2);
    }
}

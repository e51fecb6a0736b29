//! The pass that recomputes saved activations instead of keeping them.

use super::hoist::{Hoist, hoisted, shortest};
use super::{Lowering, dry_run};
use crate::analyze::Refusal;
use crate::costs::Costs;
use crate::effects::Rules;
use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::{Kind, Op};
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;
use crate::order::makespan;

named_values! {
    /// The values that a forward keeps for its backward.
    #[derive(Default)]
    pub enum Recompute: "recomputation" {
        /// All saved activations.
        #[default]
        None = "none",
        /// Only its input: everything is computed again.
        Full = "full",
        /// The saved activations that are expensive to compute; the others are computed again.
        Selective = "selective",
    }
}

/// Recomputes stages of pipes as `what` says. Stages that are already recomputed stay as they are.
///
/// # Errors
/// If the timetable is not sound.
pub fn recompute(
    timetable: &Timetable,
    what: impl Fn(PipeId, StageId) -> Recompute,
    hoist: Hoist,
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Timetable, Refusal> {
    let before = Rules::of(timetable);
    let next_to_backwards = insert(timetable, &before, what);
    let hoisted = |cells| hoisted(&next_to_backwards, &before, cells, how.max_peak);
    match hoist {
        Hoist::OnDemand => Ok(Timetable { on_demand: true, ..next_to_backwards }),
        Hoist::By(cells) => Ok(hoisted(cells)),
        Hoist::Auto => {
            dry_run(&next_to_backwards, costs)?;
            // An order does not contain the updates within a window.
            let takes = |cells| match hoisted(cells) {
                hoisted if hoisted.update == Update::Flush => makespan(&hoisted, costs),
                hoisted => {
                    dry_run(&hoisted, costs).map_or(f64::INFINITY, |made| made.objective.makespan)
                }
            };
            Ok(hoisted(shortest(timetable.placement.n_workers(), takes)))
        }
    }
}

/// Puts every recomputation right before its backward, except for stages that had theirs `before`.
fn insert(
    timetable: &Timetable,
    before: &Rules,
    what: impl Fn(PipeId, StageId) -> Recompute,
) -> Timetable {
    let mut all = timetable.clone();
    let asked = |op: &Op| {
        if before.is_recomputed(op.pipe, op.stage) {
            Recompute::None
        } else {
            what(op.pipe, op.stage)
        }
    };
    for row in &mut all.rows {
        let cells = std::mem::take(row);
        for cell in cells {
            let backwards = cell.ops().filter(|op| op.kind.eats_saved());
            for op in backwards.filter(|op| asked(op) != Recompute::None) {
                row.push(Op { kind: Kind::Recompute, ..op }.into());
            }
            row.push(cell);
        }
    }
    let after = Rules::of(&all);
    all.selective.retain(|(pipe, stage)| before.is_recomputed(*pipe, *stage));
    for (p, pipe) in (0..).map(PipeId).zip(timetable.placement.pipes()) {
        let stages = (0..pipe.len() as u16).map(|s| (p, StageId(s)));
        let has_changed = |p, s| after.is_recomputed(p, s) && !before.is_recomputed(p, s);
        let selective =
            stages.filter(|(p, s)| has_changed(*p, *s) && what(*p, *s) == Recompute::Selective);
        all.selective.extend(selective);
    }
    all.selective.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::UniformCosts;
    use crate::interchange::{from_json, to_json};
    use crate::schedule::{Shape, find};

    fn figures(hoist: Hoist, max_peak: Option<f64>) -> (f64, f64) {
        let timetable = find("chimera").unwrap().timetable(&Shape::new(8, 8)).unwrap();
        let costs = UniformCosts::new(1.0, 2.0, 0.0);
        let how = Lowering { max_peak, ..Lowering::default() };
        let all = recompute(&timetable, |_, _| Recompute::Full, hoist, &how, &costs).unwrap();
        let run = dry_run(&all, &costs).unwrap();
        (run.objective.makespan, run.objective.peak)
    }

    /// After Mario: Chimera with D = N = 8, F = R = 1, B = 2; 36 without recomputation.
    #[test]
    fn hoisting_shortens_chimera() {
        assert_eq!(figures(Hoist::OnDemand, None), (50.0, 1.0));
        assert_eq!(figures(Hoist::By(0), None), (44.0, 1.0));
        assert_eq!(figures(Hoist::By(3), None).0, 41.0);
        assert_eq!(figures(Hoist::Auto, None), figures(Hoist::By(3), None));
    }

    /// Sums of 0.3 differ in their last digit, which is not a reason to hold more.
    #[test]
    fn rounding_hoists_nothing() {
        let timetable = find("gpipe").unwrap().timetable(&Shape::new(8, 8)).unwrap();
        for costs in [UniformCosts::new(1.0, 2.0, 0.0), UniformCosts::new(0.3, 0.6, 0.0)] {
            let how = Lowering::default();
            let all = recompute(&timetable, |_, _| Recompute::Full, Hoist::Auto, &how, &costs);
            assert_eq!(dry_run(&all.unwrap(), &costs).unwrap().objective.peak, 1.0);
        }
    }

    #[test]
    fn earlier_recomputations_stay_beside_new_ones() {
        let timetable = find("chimera").unwrap().timetable(&Shape::new(4, 4)).unwrap();
        let costs = UniformCosts::new(1.0, 2.0, 0.0);
        let again = |timetable: &Timetable, what: &dyn Fn(PipeId, StageId) -> Recompute| {
            recompute(timetable, what, Hoist::By(0), &Lowering::default(), &costs).unwrap()
        };
        let is_late = |pipe, _| match pipe {
            PipeId(1) => Recompute::Selective,
            _ => Recompute::None,
        };
        let all = again(&again(&timetable, &is_late), &|_, _| Recompute::Selective);
        let stages = |pipe| (0..4).map(move |stage| (PipeId(pipe), StageId(stage)));
        assert_eq!(all.selective, stages(0).chain(stages(1)).collect::<Vec<_>>());
        assert_eq!(from_json(to_json(&all).as_bytes()).unwrap(), all);
        // A stage that is recomputed in full keeps no part, even if it was selective before.
        let selected = Timetable { selective: vec![(PipeId(0), StageId(1))], ..timetable };
        assert_eq!(again(&selected, &|_, _| Recompute::Full).selective, []);
        // Nothing runs on the second pipe, so nothing of it is recomputed.
        let one = find("chimera").unwrap().timetable(&Shape::new(4, 1)).unwrap();
        assert_eq!(
            again(&one, &|_, _| Recompute::Selective).selective,
            stages(0).collect::<Vec<_>>()
        );
    }

    #[test]
    fn hoisting_stays_below_a_limit() {
        let (unlimited, most) = figures(Hoist::By(3), None);
        assert_eq!(figures(Hoist::By(8), Some(1.0)), (44.0, 1.0));
        assert_eq!(figures(Hoist::By(3), Some(most)), (unlimited, most));
        for limit in 1..most as u32 {
            let (makespan, peak) = figures(Hoist::By(3), Some(f64::from(limit)));
            assert!(peak <= f64::from(limit) && (unlimited..=44.0).contains(&makespan));
        }
    }
}

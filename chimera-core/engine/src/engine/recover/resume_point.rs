//! The step and the source of state for a recovery, as concluded by all ranks.
//!
//! A rank may die while others recover from an earlier death. Some ranks may then have gone back to
//! copies already, while others do not know of it yet. So ranks that meet may be at different
//! steps, and their state is of use only together with the state of others at the same step.
//! Between two meetings state is lost, but none is made. Ranks that meet again therefore find no
//! newer complete step than the ranks before them, and so complete what some of those began.

use std::collections::BTreeSet;

use chimera_schedule::ids::StageId;

use crate::engine::state::recoveries::Standing;
use crate::engine::state::shadows::{CopiedStages, Ring};

/// The state from which a recovery goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResumePoint {
    /// The state held by ranks that are at a step, or can make the updates that lead to it.
    Held(u64),
    /// Copies of an earlier step.
    Copied(Copies),
}

/// Copies of a step, among `n_ranks` ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Copies {
    pub(crate) step: u64,
    pub(crate) n_ranks: usize,
}

impl ResumePoint {
    /// Returns the newest step that living ranks have the complete state of; `None` if there is
    /// none. With a sharded optimizer, each rank has a part of its own and sends what it has
    /// updated to the others, so none can make an update by itself.
    pub(crate) fn newest(
        all: &[Standing],
        stages: &[StageId],
        is_sharded: bool,
    ) -> Option<ResumePoint> {
        let is_held = |step: &u64| {
            lost_at(all, stages, *step).is_empty()
                && (!is_sharded || all.iter().all(|of| of.is_at(*step)))
        };
        let held = all.iter().filter_map(|of| of.next).filter(is_held).max();
        let rings: BTreeSet<usize> =
            all.iter().flat_map(|of| &of.ring).map(|ring| ring.n_ranks).collect();
        let steps = all.iter().flat_map(|of| &of.shadows).map(|of| of.step);
        let copies = steps.flat_map(|step| rings.iter().map(move |n| Copies { step, n_ranks: *n }));
        let are_whole = |copies: &Copies| {
            if is_sharded {
                copies.have_all_ranks(all)
            } else {
                copies.have_all_stages(stages, all)
            }
        };
        let copies = copies.filter(are_whole).max();
        match copies.filter(|copies| held.is_none_or(|held| copies.step > held)) {
            Some(copies) => Some(ResumePoint::Copied(copies)),
            None => held.map(ResumePoint::Held),
        }
    }
}

/// The stages that are not held by any rank that can reach this step.
pub(crate) fn lost_at(all: &[Standing], stages: &[StageId], step: u64) -> Vec<StageId> {
    let reach = all.iter().filter(|of| of.can_reach(step));
    let held: BTreeSet<&StageId> = reach.flat_map(|of| &of.has).collect();
    stages.iter().filter(|stage| !held.contains(stage)).copied().collect()
}

impl Copies {
    /// A rank's place in the ring of these copies, and the stages it has copies of.
    pub(crate) fn of(self, standing: &Standing) -> Option<(&Ring, &CopiedStages)> {
        let ring = standing.ring.as_ref().filter(|ring| ring.n_ranks == self.n_ranks)?;
        Some((ring, standing.shadows.iter().find(|of| of.step == self.step)?))
    }

    /// Returns true if the copy of every rank is on itself or on the next rank.
    fn have_all_ranks(self, all: &[Standing]) -> bool {
        let has = |number: usize, with_other: bool| {
            let mut rings = all.iter().filter_map(|of| self.of(of));
            rings.any(|(ring, kept)| ring.me == number && (!with_other || !kept.other.is_empty()))
        };
        let n_ranks = self.n_ranks;
        (0..n_ranks).all(|number| has(number, false) || has((number + 1) % n_ranks, true))
    }

    /// Returns true if some rank has a copy of each of these stages.
    fn have_all_stages(self, stages: &[StageId], all: &[Standing]) -> bool {
        let copied = all.iter().filter_map(|of| self.of(of)).map(|(_, kept)| kept);
        let kept: BTreeSet<&StageId> =
            copied.flat_map(|kept| kept.own.iter().chain(&kept.other)).collect();
        stages.iter().all(|stage| kept.contains(stage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: [StageId; 2] = [StageId(0), StageId(1)];

    fn stands_at(next: u64, has: &[u16]) -> Standing {
        Standing { next: Some(next), has: stages(has), ..newcomer() }
    }

    fn newcomer() -> Standing {
        Standing {
            fields: Vec::new(),
            next: None,
            has_sums: false,
            is_within_update: false,
            has: Vec::new(),
            away_s: None,
            n: 0,
            lost_s: 0.0,
            slots: Vec::new(),
            shadows: Vec::new(),
            ring: None,
        }
    }

    fn stages(ids: &[u16]) -> Vec<StageId> {
        ids.iter().copied().map(StageId).collect()
    }

    /// Adds copies of a step: of the rank's own stages, and of those of the previous rank.
    fn with_copies(standing: Standing, step: u64, own: &[u16], other: &[u16]) -> Standing {
        let copied = CopiedStages { step, own: stages(own), other: stages(other) };
        let ring = Some(Ring { n_ranks: 3, me: usize::from(own[0]) });
        Standing { shadows: vec![copied], ring, ..standing }
    }

    fn newest(all: &[Standing]) -> Option<ResumePoint> {
        ResumePoint::newest(all, &STAGES, false)
    }

    #[test]
    fn ranks_with_the_sums_of_a_step_reach_the_next() {
        let behind = Standing { has_sums: true, ..stands_at(3, &[1]) };
        let all = [stands_at(4, &[0]), behind, newcomer()];
        assert_eq!(newest(&all), Some(ResumePoint::Held(4)));
    }

    /// A rank that has gone back by one step resembles one that has not made its updates yet, but
    /// has no gradients to make them.
    #[test]
    fn what_is_held_of_different_steps_is_not_one_state() {
        let ahead = || with_copies(stands_at(4, &[0]), 3, &[0], &[]);
        let all = [ahead(), stands_at(3, &[1]), newcomer()];
        assert_eq!(newest(&all), None);
        let all = [ahead(), with_copies(stands_at(3, &[1]), 3, &[1], &[]), newcomer()];
        let copies = Copies { step: 3, n_ranks: 3 };
        assert_eq!(newest(&all), Some(ResumePoint::Copied(copies)));
        assert_eq!(ResumePoint::newest(&all[..2], &STAGES, true), None, "the third part is lost");
    }

    /// Owners have updated their parts, which other ranks lack.
    #[test]
    fn within_the_update_of_a_sharded_optimizer_nothing_is_held() {
        let sharded = |all: &[Standing]| ResumePoint::newest(all, &STAGES, true);
        let copied = |number: u16, standing| with_copies(standing, 2, &[number], &[]);
        let of = |next: [u64; 3]| -> Vec<Standing> {
            (0..).zip(next).map(|(n, next)| copied(n, stands_at(next, &[n % 2]))).collect()
        };
        assert_eq!(sharded(&of([3, 3, 3])), Some(ResumePoint::Held(3)));
        let copies = Some(ResumePoint::Copied(Copies { step: 2, n_ranks: 3 }));
        // Two ranks have the updates of the step that the third has summed.
        let mut all = of([4, 4, 3]);
        all[2].has_sums = true;
        assert_eq!(sharded(&all), copies);
        let mut all = of([3, 3, 3]);
        all[1].is_within_update = true;
        assert_eq!(sharded(&all), copies);
        all[1].shadows.clear();
        assert_eq!(sharded(&all), None);
    }

    #[test]
    fn who_has_not_heard_that_all_went_back_is_left_behind() {
        let all = [stands_at(4, &[0]), stands_at(2, &[0]), stands_at(2, &[1])];
        assert_eq!(newest(&all), Some(ResumePoint::Held(2)));
        assert_eq!(lost_at(&all, &STAGES, 4), stages(&[1]));
    }
}

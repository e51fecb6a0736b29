//! The search across placements: the listed schedules with every pass, then orders of all ops.

use super::improve::{Found, Progress, Search, SearchState};
use super::portfolio::{Candidate, Choices, candidates, options};
use super::proof::BoundProof;
use super::space::{Space, takes_time};
use super::starts::{Allowed, each};
use crate::costs::Costs;
use crate::ir::op::Kind;
use crate::ir::timetable::Timetable;
use crate::lower::{Hoist, Lowering, Moves, Recompute, recompute};
use crate::order::{Graph, choice_bound, unordered};

/// The shortest order found for the ops of a step in a space. If there is time to look at all, it
/// is never longer than a listed schedule with any passes of the space that keeps to the memory
/// limit.
///
/// # Errors
/// Errors of `costs` on all placements. `Ok(None)` if no order keeps to the limit.
pub fn across<C: Costs, E>(
    space: &Space,
    n_micro_batches: u32,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<Option<Found>, E> {
    let mut portfolio = Portfolio { space, how, listed: Vec::new(), open: Vec::new() };
    let mut state = SearchState::new(how);
    portfolio.add_listed(&mut state, n_micro_batches, costs, observe)?;
    portfolio.add_problems(&mut state, n_micro_batches, costs);
    state.run_quickly(observe);
    portfolio.add_passed(&mut state, costs, observe);
    state.leave_combined();
    state.run_rounds(observe);
    Ok(state.finish())
}

/// The listed schedules of a space.
struct Portfolio<'s> {
    space: &'s Space,
    how: &'s Search,
    /// Listed schedules whose costs are known.
    listed: Vec<Timetable>,
    /// Choices of passes that may make a listed schedule shorter.
    open: Vec<Candidate>,
}

impl Portfolio<'_> {
    /// Adds the listed schedules as they are. Placements whose costs fail are left out, unless all
    /// do.
    fn add_listed<C: Costs, E>(
        &mut self,
        state: &mut SearchState<'_>,
        n: u32,
        costs: &impl Fn(&Timetable) -> Result<C, E>,
        observe: &mut dyn FnMut(&Progress),
    ) -> Result<(), E> {
        let halved_micro_batches = self.space.halved_micro_batches;
        let allowed =
            Allowed { split_backwards: true, halved_micro_batches, recompute: Recompute::None };
        let mut failure = None;
        for (_, placement) in &self.space.placements {
            for timetable in each(placement, n, allowed) {
                let cost = match costs(&timetable) {
                    Ok(cost) => cost,
                    Err(error) => {
                        failure.get_or_insert(error);
                        break;
                    }
                };
                if timetable.schedule.is_empty()
                    || self.listed.iter().any(|t| t.rows == timetable.rows)
                {
                    continue;
                }
                if state.has_found() && state.is_late() {
                    state.leave_out();
                    return Ok(());
                }
                let fits = match self.recomputed(&timetable, &cost) {
                    Some(recomputed) => state.start(&recomputed, &cost).is_some(),
                    None => state.start(&timetable, &cost).is_some(),
                };
                let of = self.listed.len();
                self.open.extend(candidates(
                    of,
                    &timetable,
                    fits,
                    self.choices(&timetable, &cost),
                    &cost,
                ));
                self.listed.push(timetable);
                observe(&state.progress);
            }
        }
        match failure {
            Some(error) if self.listed.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// A timetable with the recomputation of the space, if that has any.
    fn recomputed(&self, timetable: &Timetable, costs: &impl Costs) -> Option<Timetable> {
        let what = self.space.recompute;
        if what == Recompute::None {
            return None;
        }
        let lowering = Lowering { max_peak: self.how.max_peak, ..Lowering::default() };
        recompute(timetable, |_, _| what, Hoist::By(0), &lowering, costs).ok()
    }

    fn choices(&self, timetable: &Timetable, costs: &impl Costs) -> Choices {
        let is_capped = self.how.max_peak.is_some();
        let always = self.space.recompute;
        Choices {
            always,
            recompute: is_capped
                && always == Recompute::None
                && takes_time(timetable, Kind::Recompute, costs),
            moves: is_capped && self.space.moves && takes_time(timetable, Kind::Offload, costs),
        }
    }

    /// Adds the ops of each placement, with split backwards and, under a limit, with some stages
    /// recomputed.
    fn add_problems<C: Costs, E>(
        &self,
        state: &mut SearchState<'_>,
        n: u32,
        costs: &impl Fn(&Timetable) -> Result<C, E>,
    ) {
        for (_, placement) in &self.space.placements {
            let split = unordered(placement.clone(), n, true);
            let Ok(cost) = costs(&split) else { continue };
            if let Some(recomputed) = self.recomputed(&split, &cost) {
                state.add(&recomputed, &cost);
                continue;
            }
            let plain = state.add(&split, &cost);
            let Some(max_peak) = self.how.max_peak else { continue };
            let choices = self.choices(&split, &cost);
            let graph = Graph::of(&split, &cost);
            let limit = if choices.moves { f64::INFINITY } else { max_peak };
            let lower_bound = choice_bound(&graph, &cost, limit, choices.recompute);
            if choices.recompute || choices.moves {
                state.bound_by(BoundProof::of_more(graph, lower_bound));
                plain.iter().for_each(|at| state.cover(*at));
            }
            if !choices.recompute || state.is_beaten(lower_bound) {
                continue;
            }
            let n_stages = placement.n_stages();
            for quarter in 1..=4 {
                let what = |_, stage: crate::ir::ids::StageId| {
                    let is_first = stage.index() < n_stages * quarter / 4;
                    if is_first { Recompute::Full } else { Recompute::None }
                };
                let lowering = Lowering { max_peak: Some(max_peak), ..Lowering::default() };
                let again = recompute(&split, what, Hoist::By(0), &lowering, &cost);
                let added = again.ok().and_then(|again| state.add(&again, &cost));
                added.iter().for_each(|at| state.cover(*at));
            }
        }
    }

    /// Adds the listed schedules after every choice of passes that can make them the shortest.
    fn add_passed<C: Costs, E>(
        &mut self,
        state: &mut SearchState<'_>,
        costs: &impl Fn(&Timetable) -> Result<C, E>,
        observe: &mut dyn FnMut(&Progress),
    ) {
        let lowering = Lowering { max_peak: self.how.max_peak, ..Lowering::default() };
        self.open.sort_by(|a, b| a.at_least.total_cmp(&b.at_least));
        for Candidate { of, passes, at_least } in std::mem::take(&mut self.open) {
            if state.is_beaten(at_least) || state.has_found() && state.is_late() {
                break;
            }
            let listed = &self.listed[of];
            let Ok(cost) = costs(listed) else { continue };
            let Ok(mut passed) = passes.apply(listed.clone(), &lowering, &cost) else { continue };
            passed.schedule += &options(passes);
            if passes.moves == Moves::None {
                state.start(&passed, &cost);
            } else {
                state.offer(&passed, &cost);
            }
            observe(&state.progress);
        }
    }
}

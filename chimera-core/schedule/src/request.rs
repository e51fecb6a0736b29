//! Requests: the only way from a schedule, a file or a search to a timetable and a program.

use crate::analyze::{Refusal, simulate};
use crate::costs::{Costs, is_shorter};
use crate::ir::op::Kind;
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;
use crate::lower::{Hoist, Lowering, Passes, lower_at};
use crate::program::Program;
use crate::schedule::{MAX_OPS, Parameter, Scaling, Schedule, Shape, Unfit};
use crate::search::{AutoError, Progress, Report, Search, Where, auto, auto_with};

/// A request for a program.
pub struct Request<'s> {
    /// The source of the timetable.
    pub source: Source<'s>,
    /// Shape of the timetable; a [`Source::Timetable`] has its own.
    pub shape: Shape,
    /// Passes over the timetable.
    pub passes: Passes,
}

/// The source of a timetable.
pub enum Source<'s> {
    /// A schedule, built-in or a caller's.
    Schedule(&'s dyn Schedule),
    /// A timetable from a file, or from an earlier search.
    Timetable(Timetable),
    /// The shortest order that a search finds on a placement.
    Search(Where, Search),
    /// The shortest order that a search finds on any placement, this one included.
    SearchWith(Placement, Search),
}

/// A timetable, and the passes that it still needs.
pub struct Ordered {
    /// The timetable, before its passes.
    pub timetable: Timetable,
    /// The remaining passes. After a search only the border is left: the search has done the
    /// others.
    pub passes: Passes,
    /// The report of the search, if there was one.
    pub search: Option<Report>,
}

/// Passes that cannot be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnfitPasses {
    /// There are no recomputations to move.
    #[error("hoist {0} moves recomputations: choose recompute full or selective too")]
    NothingToHoist(Hoist),
    /// Moves of activations must come after all other passes.
    #[error(
        "the timetable has moves of activations already, and recompute, split-backward, bpipe and offload come before them \
         or replace them: leave these out, or make the timetable again with all of them"
    )]
    HasMoves,
    /// The timetable is already a window.
    #[error("the timetable is a window of {0} steps already: leave border free out")]
    IsWindow(u32),
    /// A window without a border has no steps, or more ops than a schedule may have.
    #[error(
        "a window of {n_steps} steps without a border is not in 1..={longest}: choose window {}",
        (*n_steps).clamp(1, *longest)
    )]
    Window {
        /// Steps of the window.
        n_steps: u32,
        /// The largest allowed number of steps.
        longest: u32,
    },
}

/// Ops of a step above which scalings are compared by a shorter step.
const MAX_COMPARED: usize = 1 << 16;

impl Request<'_> {
    /// Like [`take_shorter_scaling_by`](Self::take_shorter_scaling_by), by simulated makespans.
    ///
    /// # Errors
    /// The errors of `costs`, and [`Unfit`] if the schedule has no such shape.
    pub fn take_shorter_scaling<C: Costs, E: From<Unfit>>(
        &mut self,
        costs: &impl Fn(&Timetable) -> Result<C, E>,
    ) -> Result<(), E> {
        self.take_shorter_scaling_by(&mut |ordered| {
            let costs = costs(&ordered.timetable)?;
            let program = ordered.program(&Lowering::default(), &costs);
            Ok(program.map_or(f64::INFINITY, |program| simulate(&program, &costs).makespan()))
        })
    }

    /// Gives a schedule that reads [`Shape::scaling`], and has more micro-batches than workers, the
    /// shorter of direct and halving scaling by `makespan`; direct if they are equal. The makespan
    /// of a refused program is infinite. Doubling holds twice the activations, so it must be
    /// requested.
    ///
    /// # Errors
    /// The errors of `makespan`, and [`Unfit`] if the schedule has no such shape.
    pub fn take_shorter_scaling_by<E: From<Unfit>>(
        &mut self,
        makespan: &mut dyn FnMut(Ordered) -> Result<f64, E>,
    ) -> Result<(), E> {
        let Shape { depth, n_micro_batches: n, .. } = self.shape;
        let reads = |schedule: &dyn Schedule| schedule.reads().contains(&Parameter::Scaling);
        let schedule = match &self.source {
            Source::Schedule(schedule) if reads(*schedule) && n as usize > depth => *schedule,
            _ => return Ok(()),
        };
        // A long step repeats the pattern of a shorter one.
        let n_compared = match depth.saturating_mul(n as usize) {
            n_ops if n_ops > MAX_COMPARED && n as usize > 6 * depth => {
                4 * depth as u32 + n % (2 * depth as u32)
            }
            _ => n,
        };
        let mut takes = |scaling| -> Result<f64, E> {
            let shape = Shape { scaling, n_micro_batches: n_compared, ..self.shape };
            let timetable = schedule.timetable(&shape)?;
            // The code that makes the timetable reports an impossible window.
            match check_window(self.passes, &timetable) {
                Ok(()) => makespan(Ordered { timetable, passes: self.passes, search: None }),
                Err(_) => Ok(f64::INFINITY),
            }
        };
        let is_halved = is_shorter(takes(Scaling::Halving)?, takes(Scaling::Direct)?);
        self.shape.scaling = if is_halved { Scaling::Halving } else { Scaling::Direct };
        Ok(())
    }

    /// Makes the timetable. A search uses `costs` and reports to `observe`.
    ///
    /// # Errors
    /// [`UnfitPasses`], [`Unfit`] or [`AutoError`], and the errors of `costs`.
    pub fn timetable<C: Costs, E>(
        self,
        costs: &impl Fn(&Timetable) -> Result<C, E>,
        observe: &mut dyn FnMut(&Progress),
    ) -> Result<Ordered, E>
    where
        E: From<UnfitPasses> + From<Unfit> + From<AutoError>,
    {
        let Request { source, shape, passes } = self;
        if passes.move_nothing() {
            return Err(UnfitPasses::NothingToHoist(passes.hoist).into());
        }
        let timetable = match source {
            Source::Schedule(schedule) => schedule.timetable(&shape)?,
            Source::Timetable(timetable) => {
                let before_moves = Passes { free_border: None, ..passes } != Passes::default();
                if before_moves && timetable.has(Kind::Offload) {
                    return Err(UnfitPasses::HasMoves.into());
                }
                if passes.free_border.is_some() && timetable.update != Update::Flush {
                    return Err(UnfitPasses::IsWindow(timetable.update.n_steps()).into());
                }
                timetable
            }
            Source::Search(place, how) => {
                check_window_of_search(passes, &shape)?;
                let found = auto(place, &shape, passes, &how, costs, observe)?;
                return Ok(searched(found, passes)?);
            }
            Source::SearchWith(own, how) => {
                check_window_of_search(passes, &shape)?;
                let found = auto_with(&own, &shape, passes, &how, costs, observe)?;
                return Ok(searched(found, passes)?);
            }
        };
        check_window(passes, &timetable)?;
        Ok(Ordered { timetable, passes, search: None })
    }
}

/// Refuses windows that are too long before the time of a search is spent.
fn check_window_of_search(passes: Passes, shape: &Shape) -> Result<(), UnfitPasses> {
    let n_forwards = shape.depth.saturating_mul(shape.n_micro_batches as usize);
    check_window_of(passes.free_border, n_forwards)
}

/// Adds the passes that a search has not made to its result.
fn searched(
    (timetable, report): (Timetable, Report),
    passes: Passes,
) -> Result<Ordered, UnfitPasses> {
    check_window(passes, &timetable)?;
    let Passes { free_border, moves, .. } = passes;
    let passes = Passes { free_border, moves, ..Passes::default() };
    Ok(Ordered { timetable, passes, search: Some(report) })
}

/// Refuses a window without a border that the timetable cannot be a step of.
fn check_window(passes: Passes, timetable: &Timetable) -> Result<(), UnfitPasses> {
    match timetable.update {
        Update::Flush => check_window_of(passes.free_border, timetable.n_ops()),
        // It is already a window.
        _ => Ok(()),
    }
}

/// Refuses a window without steps, or with too many for steps of `n_ops` ops.
fn check_window_of(n_steps: Option<u32>, n_ops: usize) -> Result<(), UnfitPasses> {
    let longest = (MAX_OPS / (n_ops as u64).max(1)).clamp(1, u64::from(u32::MAX)) as u32;
    match n_steps {
        Some(n_steps) if !(1..=longest).contains(&n_steps) => {
            Err(UnfitPasses::Window { n_steps, longest })
        }
        _ => Ok(()),
    }
}

impl Ordered {
    /// Number of steps of the resulting program.
    pub fn n_steps(&self) -> u32 {
        match self.timetable.update {
            Update::Flush => self.passes.free_border.unwrap_or(1),
            update => update.n_steps(),
        }
    }

    /// The timetable after its passes.
    ///
    /// # Errors
    /// If it is not sound.
    pub fn passed(self, how: &Lowering, costs: &impl Costs) -> Result<Timetable, Refusal> {
        self.passes.apply(self.timetable, how, costs)
    }

    /// The proven program of the timetable after its passes.
    ///
    /// # Errors
    /// If it is not sound.
    pub fn program(self, how: &Lowering, costs: &impl Costs) -> Result<Program, Refusal> {
        let savings = self.passes.savings();
        let timetable = self.passed(how, costs)?;
        lower_at(&timetable, how, costs).map_err(|refusal| refusal.asked_for(savings))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::costs::UniformCosts;
    use crate::lower::Recompute;
    use crate::schedule::find;
    use crate::search::AUTO;

    fn ordered(source: Source, passes: Passes) -> Result<Ordered, Box<dyn Error>> {
        let request = Request { source, shape: Shape::new(2, 4), passes };
        request.timetable(&|_| Ok(UniformCosts::EQUAL), &mut |_| ())
    }

    #[test]
    fn every_source_leads_to_a_program() {
        let passes = Passes { recompute: Recompute::Full, ..Passes::default() };
        let gpipe = || Source::Schedule(find("gpipe").expect("known"));
        let made = ordered(gpipe(), passes).expect("fits");
        let again = Source::Timetable(made.timetable.clone());
        let search = Search { n_orders: 10, ..Search::default() };
        for (source, schedule, are_left) in [
            (gpipe(), "gpipe", true),
            (again, "gpipe", true),
            (Source::Search(Where::Line, search), AUTO, false),
        ] {
            let ordered = ordered(source, passes).expect("fits");
            assert_eq!(ordered.passes == passes, are_left, "{schedule}");
            assert_eq!(ordered.search.is_none(), are_left, "{schedule}");
            let program = ordered.program(&Lowering::default(), &UniformCosts::EQUAL);
            assert_eq!(program.expect("proven").schedule(), schedule);
        }
    }

    #[test]
    fn chimera_takes_the_shorter_scaling() {
        const TWICE: UniformCosts = UniformCosts::new(1.0, 2.0, 0.0);
        let taken = |shape: Shape, costs: UniformCosts| {
            let source = Source::Schedule(find("chimera").expect("known"));
            let mut request = Request { source, shape, passes: Passes::default() };
            let costs = |t: &Timetable| Ok::<_, Unfit>(costs.per_units(t.units_per_micro));
            request.take_shorter_scaling(&costs).expect("fits");
            request.shape.scaling
        };
        let doubled = |shape| Shape { scaling: Scaling::Doubling, ..shape };
        for (shape, costs, scaling) in [
            (Shape::new(8, 32), TWICE, Scaling::Halving),
            (Shape::new(8, 80_000), TWICE, Scaling::Halving),
            (Shape::new(8, 32), UniformCosts::EQUAL, Scaling::Direct),
            (Shape::new(2, 8), TWICE, Scaling::Direct),
            (doubled(Shape::new(4, 4)), TWICE, Scaling::Doubling),
        ] {
            assert_eq!(taken(shape, costs), scaling, "{shape:?}");
        }
    }

    #[test]
    fn a_scaling_that_is_refused_is_not_the_shorter_one() {
        let shape = Shape::new(8, 32);
        for (refused, taken) in
            [(Scaling::Halving, Scaling::Direct), (Scaling::Direct, Scaling::Halving)]
        {
            let source = Source::Schedule(find("chimera").expect("known"));
            let mut request = Request { source, shape, passes: Passes::default() };
            let is_halved = |ordered: &Ordered| ordered.timetable.units_per_micro == 2;
            let taking = request.take_shorter_scaling_by(&mut |ordered| {
                let is_refused = is_halved(&ordered) == (refused == Scaling::Halving);
                Ok::<_, Unfit>(if is_refused { f64::INFINITY } else { 1.0 })
            });
            assert_eq!((taking, request.shape.scaling), (Ok(()), taken));
        }
    }

    #[test]
    fn windows_that_have_no_step_or_too_many_are_refused_before_they_are_made() {
        let windowed = |source, n_steps| {
            let passes = Passes { free_border: Some(n_steps), ..Passes::default() };
            ordered(source, passes).map(|ordered| ordered.n_steps()).map_err(|e| e.to_string())
        };
        let source = |name| Source::Schedule(find(name).expect("known"));
        for (n_steps, nearest) in [(0, "choose window 1"), (u32::MAX, "choose window 1048576")] {
            let refusal = windowed(source("gpipe"), n_steps).expect_err("refused");
            assert!(refusal.ends_with(nearest), "{refusal}");
        }
        let search = Source::Search(Where::Line, Search::default());
        let refusal = windowed(search, 0).expect_err("refused");
        assert!(refusal.starts_with("a window of 0 steps without a border"), "{refusal}");
        assert_eq!(windowed(source("gpipe"), 3), Ok(3));
        // Its own window is not used.
        assert_eq!(windowed(source("pipedream"), 0), Ok(2));
    }

    #[test]
    fn passes_that_do_nothing_are_refused() {
        let hoisted = Passes { hoist: Hoist::By(3), ..Passes::default() };
        let gpipe = Source::Schedule(find("gpipe").expect("known"));
        let refusal = ordered(gpipe, hoisted).err().expect("refused").to_string();
        assert_eq!(refusal, "hoist 3 moves recomputations: choose recompute full or selective too");
        let both = Passes { recompute: Recompute::Full, ..hoisted };
        let search = Source::Search(Where::Line, Search::default());
        let refusal = ordered(search, both).err().expect("refused").to_string();
        assert!(refusal.ends_with("leave --hoist 3 out"), "{refusal}");
    }
}

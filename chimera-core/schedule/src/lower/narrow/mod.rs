//! The pass that lets a job continue with fewer ranks: live ranks take over the compute of dead
//! ones (ReCycle, Gandhi et al., SOSP 2024, section 3).

mod homes;
mod sooner;

use std::collections::BTreeMap;

use self::homes::Homes;
use self::sooner::sooner;
use super::{Lowering, dry_run, lower};
use crate::analyze::Refusal;
use crate::analyze::timeline::Work;
use crate::costs::{Costs, UniformCosts};
use crate::ir::ids::{PipeId, Rank, StageId, WorkerId};
use crate::ir::op::{Cell, Op, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;
use crate::program::Program;

/// The reasons that a job cannot continue with fewer ranks.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TooNarrow {
    /// Steps have no end at which the program could be changed.
    #[error(
        "an asynchronous schedule has no end of a step at which it could go on with fewer ranks"
    )]
    Asynchronous,
    /// A rank does not exist.
    #[error("{rank} does not exist: there are {n_ranks}, counted from 0")]
    Unknown {
        /// The rank.
        rank: Rank,
        /// Number of ranks.
        n_ranks: usize,
    },
    /// No live rank could give others the weights of a stage.
    #[error("no rank that lives holds {}", list_of(.0))]
    NothingLeft(Vec<StageId>),
    /// The job has more pipes than ids can number.
    #[error("{0} pipes in all groups are more than {max}", max = u16::MAX)]
    TooMany(usize),
    /// Models in several groups have different numbers of micro-batches.
    #[error(
        "models with unlike numbers of micro-batches go on with fewer ranks in one group, not in several"
    )]
    UnlikeModels,
    /// The timetable was not sound.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

fn list_of(stages: &[StageId]) -> String {
    match stages {
        [] => "any stage".into(),
        stages => stages.iter().map(StageId::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// One group's timetable as a step of the whole job of `width` groups, computed by the ranks that
/// are not `dead`.
///
/// Worker i of the result is the i-th live rank, and the only group has the micro-batches of all
/// groups, in their order: the same samples make the same step, up to the rounding of sums. The
/// micro-batches of each stage that a dead rank holds in a pipe are spread over the ranks with the
/// least work: ranks that hold the stage, and others. Every other rank gets the weights of at most
/// one stage. A pipe becomes several. Ops keep the order of their times at `costs`, unless another
/// order ends sooner and holds no more activations.
///
/// # Errors
/// [`TooNarrow`]; [`TooNarrow::NothingLeft`] where all holders of a stage are dead.
pub fn narrow(
    timetable: &Timetable,
    width: usize,
    dead: &[Rank],
    costs: &impl Costs,
) -> Result<Timetable, TooNarrow> {
    check_width(timetable, width)?;
    let is_lost = |stage: &StageId| {
        timetable.placement.holders(width, *stage).iter().all(|rank| dead.contains(rank))
    };
    let lost: Vec<StageId> = timetable.graph.stages().filter(is_lost).collect();
    if !lost.is_empty() {
        return Err(TooNarrow::NothingLeft(lost));
    }
    let n_ranks = timetable.placement.n_ranks(width);
    if let Some(&rank) = dead.iter().find(|rank| rank.index() >= n_ranks) {
        return Err(TooNarrow::Unknown { rank, n_ranks });
    }
    let ranks = (0..n_ranks as u32).map(Rank);
    let living: Vec<Rank> = ranks.filter(|rank| !dead.contains(rank)).collect();
    narrow_to(timetable, width, &living, costs)
}

/// Refuses a job with more pipes or micro-batches than ids can number.
fn check_width(timetable: &Timetable, width: usize) -> Result<(), TooNarrow> {
    if width > 1 && !timetable.micro_batches_of.is_empty() {
        return Err(TooNarrow::UnlikeModels);
    }
    let n_pipes = width.saturating_mul(timetable.placement.n_pipes());
    let n_units = u64::from(timetable.n_units()).saturating_mul(width as u64);
    if n_pipes > usize::from(u16::MAX) || u32::try_from(n_units).is_err() {
        Err(TooNarrow::TooMany(n_pipes))
    } else {
        Ok(())
    }
}

/// Like [`narrow`], for the live ranks in ascending order, even if none of them holds some stage.
fn narrow_to(
    timetable: &Timetable,
    width: usize,
    living: &[Rank],
    costs: &impl Costs,
) -> Result<Timetable, TooNarrow> {
    if timetable.update != Update::Flush {
        return Err(TooNarrow::Asynchronous);
    }
    if living.is_empty() {
        return Err(TooNarrow::NothingLeft(Vec::new()));
    }
    // Keeping activations for others concerns the whole job.
    let timetable = &timetable.without_moves();
    let job = JobOps::new(timetable, width, costs)?;
    let homes = Homes::of(timetable, width, living, &job.takes);
    let worker = |rank: &Rank| WorkerId(living.partition_point(|living| living < rank) as u16);
    let pipes: Vec<Vec<WorkerId>> =
        homes.pipes.iter().map(|pipe| pipe.ranks.iter().map(worker).collect()).collect();
    let n_pipes = pipes.len();
    let placement = Placement::new(living.len(), pipes).ok_or(TooNarrow::TooMany(n_pipes))?;
    let placement = placement.counted_as(&timetable.placement);
    let rows = job.rows(living, &homes);
    let selective = (0..).map(PipeId).zip(&homes.pipes).flat_map(|(id, pipe)| {
        let of_pipe = timetable.selective.iter().filter(|(of, _)| *of == pipe.of);
        of_pipe.map(move |(_, stage)| (id, *stage))
    });
    let n_ranks = timetable.placement.n_ranks(width);
    let by_time = Timetable {
        schedule: format!("{} on {} of {n_ranks} ranks", timetable.schedule, living.len()),
        placement,
        n_micro_batches: timetable.n_micro_batches * width as u32,
        selective: selective.collect(),
        rows: rows.iter().map(|row| row.iter().map(|timed| timed.cell).collect()).collect(),
        ..timetable.clone()
    };
    let starts: Vec<f64> = rows.iter().flatten().map(|timed| timed.start).collect();
    sooner(by_time, &starts, costs)
}

/// The program of a job of `width` groups for its live ranks, with the timetable of [`narrow`].
/// Stages with only dead holders may have been given to others since, so they are not refused.
fn narrow_program(
    program: &Program,
    width: usize,
    living: &[Rank],
    costs: &impl Costs,
) -> Result<Program, TooNarrow> {
    let narrowed = narrow_to(&program.timetable(), width, living, costs)?;
    let buckets = program.buckets_of_update().iter();
    let tied = buckets.filter(|bucket| bucket.stages.len() > 1);
    let how = Lowering {
        barrier: program.has_barrier(),
        tied: tied.map(|bucket| bucket.stages.clone()).collect(),
        ..Lowering::default()
    };
    Ok(lower(&narrowed, &how)?)
}

/// A job's program for all of its ranks, and the programs for fewer ranks made so far.
pub struct Programs<'p> {
    whole: &'p Program,
    width: usize,
    /// Programs by the ranks that are present.
    narrowed: BTreeMap<Vec<Rank>, Program>,
}

impl<'p> Programs<'p> {
    /// The program of a group of a job of `width` groups.
    pub fn new(whole: &'p Program, width: usize) -> Programs<'p> {
        Programs { whole, width, narrowed: BTreeMap::new() }
    }

    /// Makes the program for the ranks that are `present`, unless it exists. All ranks make the
    /// same program.
    ///
    /// # Errors
    /// [`TooNarrow`].
    pub fn make(&mut self, present: &[Rank]) -> Result<(), TooNarrow> {
        let n_ranks = self.whole.placement().n_ranks(self.width);
        if present.len() == n_ranks || self.narrowed.contains_key(present) {
            return Ok(());
        }
        let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(self.whole.units_per_micro());
        let narrowed = narrow_program(self.whole, self.width, present, &costs)?;
        self.narrowed.insert(present.to_vec(), narrowed);
        Ok(())
    }

    /// The program for the ranks that are `present`, which must have been [made](Programs::make),
    /// and the number of its groups.
    pub fn of(&self, present: &[Rank]) -> (&Program, usize) {
        self.narrowed.get(present).map_or((self.whole, self.width), |narrowed| (narrowed, 1))
    }
}

/// A cell of a group's step.
#[derive(Clone, Copy)]
struct Timed {
    start: f64,
    /// Position among all cells of the group: after those that it waits for, even if they take
    /// no time.
    place: usize,
    cell: Cell,
}

/// The ops of all groups of a job in a step, with the times of a single group.
struct JobOps<'t> {
    timetable: &'t Timetable,
    width: usize,
    /// The cells of each worker of a group.
    rows: Vec<Vec<Timed>>,
    /// The time of a stage's step in a pipe.
    takes: BTreeMap<(PipeId, StageId), f64>,
}

impl<'t> JobOps<'t> {
    fn new(timetable: &'t Timetable, width: usize, costs: &impl Costs) -> Result<Self, TooNarrow> {
        check_width(timetable, width)?;
        let mut rows = vec![Vec::new(); timetable.rows.len()];
        let mut takes = BTreeMap::new();
        for (place, event) in dry_run(timetable, costs)?.timeline.events.iter().enumerate() {
            let Work::Cell(cell) = event.work else { continue };
            rows[event.worker.index()].push(Timed { start: event.start, place, cell });
            let n_ops = cell.ops().count() as f64;
            for op in cell.ops() {
                *takes.entry((op.pipe, op.stage)).or_default() += (event.end - event.start) / n_ops;
            }
        }
        Ok(JobOps { timetable, width, rows, takes })
    }

    /// The cells of each live rank, by their times.
    fn rows(&self, living: &[Rank], homes: &Homes) -> Vec<Vec<Timed>> {
        let placement = &self.timetable.placement;
        let n_units = self.timetable.n_units();
        let mut rows = vec![Vec::new(); living.len()];
        for group in 0..self.width {
            let moved = |op: Op| {
                let span = Span { start: op.span.start + group as u32 * n_units, ..op.span };
                Op { pipe: homes.pipe_of(span), span, ..op }
            };
            for (worker, row) in (0..).map(WorkerId).zip(&self.rows) {
                let home = living.binary_search(&placement.rank(group, worker)).ok();
                for timed in row {
                    let mut add = |at: usize, cell| rows[at].push(Timed { cell, ..*timed });
                    match home {
                        Some(at) => add(at, timed.cell.map(moved)),
                        // The ops of a pair may get different homes.
                        None => timed.cell.ops().map(moved).for_each(|op| {
                            let rank = homes.pipes[op.pipe.index()].ranks[op.stage.index()];
                            add(living.partition_point(|living| *living < rank), Cell::One(op));
                        }),
                    }
                }
            }
        }
        for row in &mut rows {
            row.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.place.cmp(&b.place)));
        }
        rows
    }
}

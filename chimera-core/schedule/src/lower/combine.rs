//! The pass that puts the models of two timetables onto the same workers, in one step.

use rustc_hash::FxHashMap;

use crate::ir::graph::{GraphError, StageGraph};
use crate::ir::ids::{PipeId, StageId, WorkerId};
use crate::ir::op::{Cell, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

/// The reasons that two timetables cannot be combined.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotCombinable {
    /// The timetables have different numbers of workers.
    #[error(
        "{first} has {of_first} workers and {second} has {of_second}: make both for the same workers"
    )]
    Workers {
        /// Name of the first schedule.
        first: String,
        /// Workers of the first schedule.
        of_first: usize,
        /// Name of the second schedule.
        second: String,
        /// Workers of the second schedule.
        of_second: usize,
    },
    /// The micro-batches of the timetables are cut differently.
    #[error(
        "micro-batches are cut into {of_first} and into {of_second} parts: cut those of both models alike"
    )]
    Units {
        /// Parts of a micro-batch of the first, in words.
        of_first: String,
        /// Parts of a micro-batch of the second, in words.
        of_second: String,
    },
    /// A timetable covers a window of several steps.
    #[error("{0} has no flush after each step, at which both models could end together")]
    Window(String),
    /// A timetable recomputes on demand, the other as early as it can.
    #[error("{0} recomputes on demand and the other does not: choose one for both")]
    OnDemand(String),
    /// Together they have more stages, or more pipes, than ids can number.
    #[error("{n} {what} in both are more than {max}", max = u16::MAX)]
    TooMany {
        /// Number of them.
        n: usize,
        /// `stages` or `pipes`.
        what: &'static str,
    },
    /// The stages of both together do not form a valid graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Combines the models of two timetables: each worker runs its row of the first, then its row of the
/// second. [`search`](crate::search::search()) from the result finds how the models fill each other's
/// idle time (RLHFuse, Zhong et al., NSDI 2025, section 5).
///
/// The stages of the second follow those of the first. Each model keeps its own number of
/// micro-batches, and no edge leads from one to the other.
///
/// # Errors
/// [`NotCombinable`]: both need the same workers, equally cut micro-batches, and a flush after each step.
pub fn combine(first: &Timetable, second: &Timetable) -> Result<Timetable, NotCombinable> {
    check(first, second)?;
    let n_before = first.placement.n_stages();
    let later = |stage: StageId| StageId(stage.0 + n_before as u16);
    let pipes = CombinedPipes::of(first, second)?;
    let moved = |cell: &Cell, is_second: bool| {
        cell.map(|op| Op {
            pipe: pipes.of_unit.get(op.span.start as usize).copied().unwrap_or(op.pipe),
            stage: if is_second { later(op.stage) } else { op.stage },
            ..op
        })
    };
    let rows = first.rows.iter().zip(&second.rows).map(|(before, after)| {
        let before = before.iter().map(|cell| moved(cell, false));
        before.chain(after.iter().map(|cell| moved(cell, true))).collect()
    });
    let selective_in = |(first_pipe, second_pipe): (PipeId, PipeId), id: PipeId| {
        let of_first = first.selective.iter().filter(move |(pipe, _)| *pipe == first_pipe);
        let of_second = second.selective.iter().filter(move |(pipe, _)| *pipe == second_pipe);
        let stages = of_first.map(|(_, stage)| *stage);
        stages.chain(of_second.map(move |(_, stage)| later(*stage))).map(move |stage| (id, stage))
    };
    let n_micro_batches = first.n_micro_batches.max(second.n_micro_batches);
    let mut micro_batches_of = [counts(first), counts(second)].concat();
    if micro_batches_of.iter().all(|n| *n == n_micro_batches) {
        micro_batches_of.clear();
    }
    Ok(Timetable {
        schedule: format!("{} and {}", first.schedule, second.schedule),
        graph: combined_graph(&first.graph, &second.graph)?,
        n_micro_batches,
        micro_batches_of,
        rows: rows.collect(),
        selective: (0..)
            .map(PipeId)
            .zip(&pipes.pairs)
            .flat_map(|(id, pair)| selective_in(*pair, id))
            .collect(),
        frozen: first
            .frozen
            .iter()
            .copied()
            .chain(second.frozen.iter().copied().map(later))
            .collect(),
        placement: pipes.placement(first, second)?,
        ..first.clone()
    })
}

fn check(first: &Timetable, second: &Timetable) -> Result<(), NotCombinable> {
    let [of_first, of_second] = [first, second].map(|timetable| timetable.rows.len());
    if of_first != of_second {
        let [first, second] = [first, second].map(|timetable| timetable.schedule.clone());
        return Err(NotCombinable::Workers { first, of_first, second, of_second });
    }
    if let Some(window) = [first, second].into_iter().find(|t| t.update != Update::Flush) {
        return Err(NotCombinable::Window(window.schedule.clone()));
    }
    let cut = |timetable: &Timetable| {
        let what = if timetable.is_sliced { "slices of sequences" } else { "shares of samples" };
        format!("{} {what}", timetable.units_per_micro)
    };
    let [of_first, of_second] = [first, second].map(cut);
    if of_first != of_second {
        return Err(NotCombinable::Units { of_first, of_second });
    }
    if first.on_demand != second.on_demand {
        let on_demand = if first.on_demand { first } else { second };
        return Err(NotCombinable::OnDemand(on_demand.schedule.clone()));
    }
    Ok(())
}

/// The micro-batches of each model.
fn counts(timetable: &Timetable) -> Vec<u32> {
    if !timetable.micro_batches_of.is_empty() {
        return timetable.micro_batches_of.clone();
    }
    vec![timetable.n_micro_batches; timetable.graph.n_models()]
}

fn combined_graph(first: &StageGraph, second: &StageGraph) -> Result<StageGraph, NotCombinable> {
    let n_stages = first.n_stages() + second.n_stages();
    if n_stages > usize::from(u16::MAX) {
        return Err(NotCombinable::TooMany { n: n_stages, what: "stages" });
    }
    let n_before = first.n_stages() as u16;
    let own = |stage: StageId| stage.0;
    let later = |stage: StageId| stage.0 + n_before;
    let sources: Vec<u16> = first.sources().map(own).chain(second.sources().map(later)).collect();
    let losses: Vec<u16> = first.losses().map(own).chain(second.losses().map(later)).collect();
    let edges = first.edges().map(|(from, to)| (own(from), own(to)));
    let edges: Vec<_> = edges.chain(second.edges().map(|(a, b)| (later(a), later(b)))).collect();
    Ok(StageGraph::new(n_stages, &sources, &edges, &losses)?)
}

/// The pipes of two models: a micro-batch takes one through both.
struct CombinedPipes {
    /// The pipe of the first and the pipe of the second that make up each pipe.
    pairs: Vec<(PipeId, PipeId)>,
    of_unit: Vec<PipeId>,
}

impl CombinedPipes {
    fn of(first: &Timetable, second: &Timetable) -> Result<CombinedPipes, NotCombinable> {
        let [of_first, of_second] = [first, second].map(pipes_of_units);
        let pipe = |pipes: &[PipeId], unit: usize| pipes.get(unit).copied().unwrap_or(PipeId(0));
        let mut known: FxHashMap<(PipeId, PipeId), PipeId> = FxHashMap::default();
        let (mut pairs, mut of_unit) = (Vec::new(), Vec::new());
        let mut add = |pair| {
            *known.entry(pair).or_insert_with(|| {
                pairs.push(pair);
                PipeId((pairs.len() - 1) as u16)
            })
        };
        for unit in 0..of_first.len().max(of_second.len()) {
            of_unit.push(add((pipe(&of_first, unit), pipe(&of_second, unit))));
        }
        // Every pipe keeps its workers, also one without micro-batches.
        let n_pipes = first.placement.n_pipes().max(second.placement.n_pipes());
        for at in 0..n_pipes {
            let of = |timetable: &Timetable| PipeId((at % timetable.placement.n_pipes()) as u16);
            add((of(first), of(second)));
        }
        if pairs.len() > usize::from(u16::MAX) {
            return Err(NotCombinable::TooMany { n: pairs.len(), what: "pipes" });
        }
        Ok(CombinedPipes { pairs, of_unit })
    }

    fn placement(&self, first: &Timetable, second: &Timetable) -> Result<Placement, NotCombinable> {
        let workers = |timetable: &Timetable, pipe: PipeId| -> Vec<WorkerId> {
            timetable.placement.pipes()[pipe.index()].clone()
        };
        let pipes =
            self.pairs.iter().map(|(a, b)| [workers(first, *a), workers(second, *b)].concat());
        let pipes: Vec<Vec<WorkerId>> = pipes.collect();
        let n = pipes.len();
        let placement = Placement::new(first.placement.n_workers(), pipes);
        placement.ok_or(NotCombinable::TooMany { n, what: "pipes" })
    }
}

/// The pipe of each unit.
fn pipes_of_units(timetable: &Timetable) -> Vec<PipeId> {
    let mut pipes = vec![PipeId(0); timetable.n_units() as usize];
    for op in timetable.ops() {
        for unit in op.span.units() {
            if let Some(pipe) = pipes.get_mut(unit as usize) {
                *pipe = op.pipe;
            }
        }
    }
    pipes
}

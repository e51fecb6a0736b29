//! The live ranks that take over the compute of dead ranks.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::ids::{PipeId, Rank, StageId};
use crate::ir::op::Span;
use crate::ir::timetable::Timetable;

/// The pipes of all groups of a job, with a live rank for each of their stages.
pub(super) struct Homes {
    pub(super) pipes: Vec<Pipe>,
    /// The pipe of each micro-batch of the job.
    pipe_of: Vec<PipeId>,
    units_per_micro: u32,
}

/// A pipe, or the part of one for micro-batches with the same homes.
pub(super) struct Pipe {
    /// The pipe of a group that it belongs to.
    pub(super) of: PipeId,
    /// The rank of each stage.
    pub(super) ranks: Vec<Rank>,
}

impl Homes {
    /// Assigns every micro-batch of every stage to a live rank. `takes` has the time of a stage's
    /// step in a pipe.
    pub(super) fn of(
        timetable: &Timetable,
        width: usize,
        living: &[Rank],
        takes: &BTreeMap<(PipeId, StageId), f64>,
    ) -> Homes {
        let Timetable { placement, units_per_micro, n_micro_batches, .. } = timetable;
        let takes = |pipe, stage| takes.get(&(pipe, stage)).copied().unwrap_or(0.0);
        let blocks = blocks(timetable);
        let mut homes =
            Homes { pipes: Vec::new(), pipe_of: Vec::new(), units_per_micro: *units_per_micro };
        let mut loads = Loads::new(living);
        for group in 0..width {
            let first = n_micro_batches * group as u32;
            homes.pipe_of.resize((first + n_micro_batches) as usize, PipeId(0));
            for (of, workers) in (0..).map(PipeId).zip(placement.pipes()) {
                let ranks: Vec<_> = workers.iter().map(|w| placement.rank(group, *w)).collect();
                for (stage, rank) in (0..).map(StageId).zip(&ranks) {
                    loads.add(*rank, takes(of, stage));
                }
                homes.put(Pipe { of, ranks }, first, blocks[of.index()].iter().flatten());
            }
        }
        let mut homeless = homes.homeless(&loads, takes);
        homeless.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let blocks_of = |pipe: usize| &blocks[homes.pipes[pipe].of.index()];
        // The stages of a pipe without micro-batches need a home too.
        let n_blocks = |pipe| blocks_of(pipe).len().max(1);
        let rounds = homeless.iter().map(|(_, pipe, _)| n_blocks(*pipe)).max().unwrap_or(0);
        let mut found: BTreeMap<(usize, usize), BTreeMap<StageId, Rank>> = BTreeMap::new();
        // Stages take turns, so that one does not take all the ranks that can help.
        for block in 0..rounds {
            for &(takes, pipe, stage) in &homeless {
                if block >= n_blocks(pipe) {
                    continue;
                }
                let holders = placement.holders(width, stage);
                let is_idle = blocks_of(pipe).is_empty();
                let idle = holders.iter().find(|rank| is_idle && loads.has(rank));
                let rank = idle.copied().unwrap_or_else(|| loads.least(stage, &holders));
                loads.add(rank, takes / n_blocks(pipe) as f64);
                found.entry((pipe, block)).or_default().insert(stage, rank);
            }
        }
        homes.split(found, &blocks, *n_micro_batches);
        homes
    }

    /// The pipe that the micro-batches of a span take.
    pub(super) fn pipe_of(&self, span: Span) -> PipeId {
        self.pipe_of[(span.start / self.units_per_micro) as usize]
    }

    /// Adds a pipe for micro-batches, which are counted from `first`.
    fn put<'m>(&mut self, pipe: Pipe, first: u32, micros: impl Iterator<Item = &'m u32>) {
        let id = PipeId(self.pipes.len() as u16);
        for micro in micros {
            self.pipe_of[(first + micro) as usize] = id;
        }
        self.pipes.push(pipe);
    }

    /// The stages of dead ranks with their pipes and times.
    fn homeless(
        &self,
        loads: &Loads,
        takes: impl Fn(PipeId, StageId) -> f64,
    ) -> Vec<(f64, usize, StageId)> {
        let mut homeless = Vec::new();
        for (at, pipe) in self.pipes.iter().enumerate() {
            let stages = (0..).map(StageId).zip(&pipe.ranks);
            let dead = stages.filter(|(_, rank)| !loads.has(rank));
            homeless.extend(dead.map(|(stage, _)| (takes(pipe.of, stage), at, stage)));
        }
        homeless
    }

    /// Gives each stage in `found` its new home, by pipe and block of micro-batches.
    fn split(
        &mut self,
        found: BTreeMap<(usize, usize), BTreeMap<StageId, Rank>>,
        blocks: &[Vec<Vec<u32>>],
        n_micro_batches: u32,
    ) {
        let mut parts: BTreeMap<(usize, BTreeMap<StageId, Rank>), Vec<usize>> = BTreeMap::new();
        for ((pipe, block), homes) in found {
            parts.entry((pipe, homes)).or_default().push(block);
        }
        let n_pipes = blocks.len();
        let mut is_split = vec![false; self.pipes.len()];
        for ((at, homes), part) in parts {
            let Pipe { of, ranks } = &self.pipes[at];
            let of = *of;
            let mut ranks = ranks.clone();
            for (stage, rank) in homes {
                ranks[stage.index()] = rank;
            }
            let first = n_micro_batches * (at / n_pipes) as u32;
            let micros = part.iter().filter_map(|block| blocks[of.index()].get(*block)).flatten();
            // The first part replaces the pipe.
            if std::mem::replace(&mut is_split[at], true) {
                self.put(Pipe { of, ranks }, first, micros);
            } else {
                self.pipes[at].ranks = ranks;
            }
        }
    }
}

/// The work of each live rank.
struct Loads {
    by_rank: BTreeMap<Rank, f64>,
    /// The stages that ranks get in addition to those that they hold.
    given: BTreeSet<(Rank, StageId)>,
}

impl Loads {
    fn new(living: &[Rank]) -> Loads {
        let by_rank = living.iter().map(|rank| (*rank, 0.0)).collect();
        Loads { by_rank, given: BTreeSet::new() }
    }

    /// Returns true if a rank is alive.
    fn has(&self, rank: &Rank) -> bool {
        self.by_rank.contains_key(rank)
    }

    /// Adds to the work of a rank, if it is alive.
    fn add(&mut self, rank: Rank, takes: f64) {
        if let Some(load) = self.by_rank.get_mut(&rank) {
            *load += takes;
        }
    }

    /// The rank with the least work among those that hold a stage or can get it.
    ///
    /// A rank gets one stage at most, unless nobody holds the stage and all have already got one.
    fn least(&mut self, stage: StageId, holders: &[Rank]) -> Rank {
        let is_given = |rank: Rank| self.given.contains(&(rank, stage));
        let has_one = |rank: Rank| self.given.iter().any(|(other, _)| *other == rank);
        // Among ranks with equal work, one that holds the stage saves the memory of another copy.
        let cost = |rank: Rank| match (holders.contains(&rank), is_given(rank), has_one(rank)) {
            (true, ..) => 0,
            (_, true, _) => 1,
            (.., false) => 2,
            _ => 3,
        };
        let is_held = self.by_rank.keys().any(|rank| cost(*rank) < 3);
        let ranks = self.by_rank.iter().filter(|(rank, _)| !is_held || cost(**rank) < 3);
        let least = ranks
            .min_by(|(a, load), (b, other)| load.total_cmp(other).then(cost(**a).cmp(&cost(**b))));
        let least = least.map_or(Rank(0), |(rank, _)| *rank);
        if !holders.contains(&least) {
            self.given.insert((least, stage));
        }
        least
    }
}

/// The micro-batches of each pipe of a group, in blocks that share an op.
fn blocks(timetable: &Timetable) -> Vec<Vec<Vec<u32>>> {
    let n_micros = timetable.n_micro_batches as usize;
    let mut pipe_of = vec![None; n_micros];
    let mut begins = vec![true; n_micros];
    for op in timetable.ops() {
        let units = op.span.units();
        let micros = units.start / timetable.units_per_micro
            ..=units.end.saturating_sub(1) / timetable.units_per_micro;
        for micro in micros.clone() {
            pipe_of[micro as usize] = Some(op.pipe);
            begins[micro as usize] &= micro == *micros.start();
        }
    }
    let mut blocks: Vec<Vec<Vec<u32>>> = vec![Vec::new(); timetable.placement.n_pipes()];
    for (micro, pipe) in (0..).zip(pipe_of) {
        let Some(pipe) = pipe else { continue };
        let of_pipe: &mut Vec<Vec<u32>> = &mut blocks[pipe.index()];
        match of_pipe.last_mut() {
            Some(last) if !begins[micro as usize] => last.push(micro),
            _ => of_pipe.push(vec![micro]),
        }
    }
    blocks
}

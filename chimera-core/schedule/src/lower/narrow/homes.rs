//! Which of the ranks that live computes what the dead would.

use std::collections::BTreeMap;

use crate::ids::{PipeId, Rank, StageId};
use crate::op::Span;
use crate::timetable::Timetable;

/// The pipes of all groups of a job, with a home among the ranks that live for each of their stages.
pub(super) struct Homes {
    pub(super) pipes: Vec<Pipe>,
    /// By micro-batch of the job.
    pipe_of: Vec<PipeId>,
    units_per_micro: u32,
}

/// A pipe, or a part of one that the micro-batches take which have the same homes.
pub(super) struct Pipe {
    /// The pipe of a group that it is of.
    pub(super) of: PipeId,
    /// By stage.
    pub(super) ranks: Vec<Rank>,
}

impl Homes {
    /// `takes` says what a step of a stage takes in a pipe.
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
        // The largest first, so that small ones make up for what they leave uneven.
        let mut homeless = homes.homeless(&loads, takes);
        homeless.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let mut found: BTreeMap<(usize, usize), BTreeMap<StageId, Rank>> = BTreeMap::new();
        for (takes, pipe, stage) in homeless {
            let holders = placement.holders(width, stage);
            let blocks = &blocks[homes.pipes[pipe].of.index()];
            // A pipe without micro-batches has its stages somewhere too.
            let n_blocks = blocks.len().max(1);
            for block in 0..n_blocks {
                let idle = holders.iter().find(|rank| blocks.is_empty() && loads.has(rank));
                let rank = idle.copied().unwrap_or_else(|| loads.least(stage, &holders));
                loads.add(rank, takes / n_blocks as f64);
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

    /// Adds a pipe, which micro-batches take that are counted from `first`.
    fn put<'m>(&mut self, pipe: Pipe, first: u32, micros: impl Iterator<Item = &'m u32>) {
        let id = PipeId(self.pipes.len() as u16);
        for micro in micros {
            self.pipe_of[(first + micro) as usize] = id;
        }
        self.pipes.push(pipe);
    }

    /// What stages take whose rank is dead, with their pipes.
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

    /// Gives the stages that were `found` a home their homes, by pipe and block of micro-batches.
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
            let (of, mut ranks) = (*of, ranks.clone());
            for (stage, rank) in homes {
                ranks[stage.index()] = rank;
            }
            let first = n_micro_batches * (at / n_pipes) as u32;
            let micros = part.iter().filter_map(|block| blocks[of.index()].get(*block)).flatten();
            // The first part takes the place of the pipe.
            match std::mem::replace(&mut is_split[at], true) {
                false => self.pipes[at].ranks = ranks,
                true => self.put(Pipe { of, ranks }, first, micros),
            }
        }
    }
}

/// What each rank that lives has to do.
struct Loads {
    by_rank: BTreeMap<Rank, f64>,
    /// Who is to hold a stage beside those that hold it.
    more: BTreeMap<StageId, Rank>,
}

impl Loads {
    fn new(living: &[Rank]) -> Loads {
        let by_rank = living.iter().map(|rank| (*rank, 0.0)).collect();
        Loads { by_rank, more: BTreeMap::new() }
    }

    /// Whether a rank lives.
    fn has(&self, rank: &Rank) -> bool {
        self.by_rank.contains_key(rank)
    }

    /// Adds to what a rank has to do, if it lives.
    fn add(&mut self, rank: Rank, takes: f64) {
        if let Some(load) = self.by_rank.get_mut(&rank) {
            *load += takes;
        }
    }

    /// The rank with the least to do among the holders of a stage, and one more that is to be given its weights.
    fn least(&mut self, stage: StageId, holders: &[Rank]) -> Rank {
        let more = self.more.get(&stage).copied();
        let may = |rank: &Rank| holders.contains(rank) || more.is_none_or(|more| more == *rank);
        let by_load = |(a, load): &(&Rank, &f64), (b, other): &(&Rank, &f64)| {
            let moves = |rank| !holders.contains(rank);
            load.total_cmp(other).then(moves(*a).cmp(&moves(*b)))
        };
        let ranks = self.by_rank.iter().filter(|(rank, _)| may(rank));
        let least = ranks.min_by(by_load).map_or(Rank(0), |(rank, _)| *rank);
        if !holders.contains(&least) {
            self.more.insert(stage, least);
        }
        least
    }
}

/// By pipe of a group: its micro-batches, those together that share an op.
fn blocks(timetable: &Timetable) -> Vec<Vec<Vec<u32>>> {
    let n_micros = timetable.n_micro_batches as usize;
    let (mut pipe_of, mut begins) = (vec![None; n_micros], vec![true; n_micros]);
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

//! The pass that shards weights over replicas (ZeRO stage 3; Rajbhandari et al., SC 2020): a worker
//! gathers the weights of a stage before it uses them, and releases them after.
//!
//! At most a given number of stages are whole on a worker at once. If there are more, the one that
//! is needed last is released after its last use before that (Belady, IBM Systems Journal, 1966).
//!
//! The replicas send their shards early: in the simulated step they have sent them when the op
//! before the use begins. All shards of a gathering are sent strictly before the use begins, and
//! everything else that a worker waits for is no later in the simulation than the end of its wait.
//! So workers cannot wait for each other in a circle.

use std::collections::BTreeSet;

use crate::analyze::timeline::{Timeline, Work};
use crate::analyze::{Reason, Refusal, simulate};
use crate::costs::Costs;
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::op::{Cell, Lane};
use crate::ir::update::Update;
use crate::program::{Gathering, Instr, Program, ShardOp};

/// Adds the instructions for sharded weights to a proven program, with at most `n_whole` stages
/// whole on a worker at once, except where one cell needs more.
///
/// # Errors
/// If weights are read while they are updated.
pub(super) fn insert(
    program: &mut Program,
    n_whole: usize,
    costs: &impl Costs,
) -> Result<(), Refusal> {
    if program.window.update() != Update::Flush {
        let reason = Reason::Synchronisation(
            "sharded weights need a flush after each step: here they are read while they are updated"
                .into(),
        );
        let schedule = program.schedule.clone();
        return Err(Refusal { schedule, at: None, reason, drawing: String::new() });
    }
    program.rules.shards_weights = true;
    let times = times(&simulate(program, costs));
    let mut added: Vec<Added> = program.rows.iter().map(|_| Added::default()).collect();
    let stages = 0..program.placement.n_stages() as u16;
    let sharers: Vec<_> = stages.map(|stage| program.sharers(StageId(stage))).collect();
    let mut needs = Vec::new();
    for worker in (0..program.rows.len() as u16).map(WorkerId) {
        let uses = uses(program, worker);
        let (gathered, dropped) = gatherings(&uses, n_whole);
        let its = &mut added[worker.index()];
        its.drops.extend(dropped.into_iter().map(|(cell, stage)| (cell, ShardOp::Drop(stage))));
        for (number, (cell, stage)) in (0..).zip(gathered) {
            let gathering = Gathering { stage, to: worker, number };
            its.gathers.push((cell, ShardOp::Gather(gathering)));
            let start = |cell: usize| times[worker.index()].get(cell).map_or(0.0, |(s, _)| *s);
            needs.push((start(cell.saturating_sub(1)), start(cell), gathering));
        }
    }
    needs.sort_by(|(early, need, of), (other, later, also)| {
        early.total_cmp(other).then(need.total_cmp(later)).then(of.to.cmp(&also.to))
    });
    for (early, need, gathering) in needs {
        for sharer in &sharers[gathering.stage.index()] {
            let ends = times[sharer.index()].iter().map(|(_, end)| *end);
            let cell = ends.take_while(|end| *end <= early && *end < need).count();
            added[sharer.index()].shares.push((cell, ShardOp::Share(gathering)));
        }
    }
    for (row, added) in program.rows.iter_mut().zip(added) {
        *row = added.merged(row);
    }
    Ok(())
}

/// Start and end of each worker's cells.
fn times(timeline: &Timeline) -> Vec<Vec<(f64, f64)>> {
    let is_cell = |work| matches!(work, Work::Cell(_));
    let of = |row: Vec<_>| {
        let cells = row.into_iter().filter(|event: &&crate::analyze::Event| is_cell(event.work));
        cells.map(|event| (event.start, event.end)).collect()
    };
    timeline.rows().into_iter().map(of).collect()
}

/// The stages whose weights each compute cell of a worker reads.
fn uses(program: &Program, worker: WorkerId) -> Vec<BTreeSet<StageId>> {
    let cells = program.rows[worker.index()].iter().filter_map(compute);
    let read = |cell: &Cell| {
        let reads = cell.ops().filter(|op| program.reads_shards(op));
        reads.map(|op| op.stage).collect()
    };
    cells.map(read).collect()
}

fn compute(instr: &Instr) -> Option<&Cell> {
    match instr {
        Instr::Run(cell) if cell.lane() == Lane::Compute => Some(cell),
        _ => None,
    }
}

/// A stage, and the cell before which it is gathered or after which it is released.
type AtCell = (usize, StageId);

/// The gatherings of a row whose cells read these stages, and the releases.
fn gatherings(uses: &[BTreeSet<StageId>], n_whole: usize) -> (Vec<AtCell>, Vec<AtCell>) {
    let next_use = |stage: StageId, after: usize| {
        let later = uses.iter().enumerate().skip(after);
        later.filter(|(_, read)| read.contains(&stage)).map(|(cell, _)| cell).next()
    };
    let (mut gathered, mut dropped) = (Vec::new(), Vec::new());
    // Whole stages, each with its last use so far and its next.
    let mut whole: Vec<(StageId, usize, usize)> = Vec::new();
    for (cell, read) in uses.iter().enumerate() {
        let lacking: Vec<StageId> =
            read.iter().copied().filter(|s| whole.iter().all(|(held, ..)| held != s)).collect();
        while !lacking.is_empty() && whole.len() + lacking.len() > n_whole {
            let free = whole.iter().enumerate().filter(|(_, (stage, ..))| !read.contains(stage));
            let Some((last, _)) = free.max_by_key(|(_, (_, _, next))| *next) else { break };
            let (stage, used, _) = whole.remove(last);
            dropped.push((used, stage));
        }
        gathered.extend(lacking.iter().map(|stage| (cell, *stage)));
        whole.extend(lacking.into_iter().map(|stage| (stage, cell, cell)));
        for of in whole.iter_mut().filter(|(stage, ..)| read.contains(stage)) {
            match next_use(of.0, cell + 1) {
                Some(next) => (of.1, of.2) = (cell, next),
                None => dropped.push((cell, of.0)),
            }
        }
        whole.retain(|(stage, ..)| !dropped.contains(&(cell, *stage)));
    }
    dropped.sort_unstable();
    (gathered, dropped)
}

/// The instructions that are added to a row, each with the compute cell before which it comes, or
/// after which, for releases.
#[derive(Default)]
struct Added {
    shares: Vec<(usize, ShardOp)>,
    gathers: Vec<(usize, ShardOp)>,
    drops: Vec<(usize, ShardOp)>,
}

impl Added {
    /// The row with these instructions. A shard is sent after the messages of the last cell, and
    /// before its worker waits for those of the next.
    fn merged(mut self, row: &[Instr]) -> Vec<Instr> {
        self.shares.sort_by_key(|(cell, _)| *cell); // equal ones keep their order
        let n_added = self.shares.len() + self.gathers.len() + self.drops.len();
        let mut merged = Vec::with_capacity(row.len() + n_added);
        let mut shares = self.shares.into_iter().peekable();
        let mut gathers = self.gathers.into_iter().peekable();
        let mut drops = self.drops.into_iter().peekable();
        let mut n_cells = 0;
        for instr in row {
            if !matches!(instr, Instr::Send(..) | Instr::Give(_)) {
                while let Some((_, op)) = shares.next_if(|(cell, _)| *cell <= n_cells) {
                    merged.push(Instr::Shard(op));
                }
            }
            if compute(instr).is_none() {
                merged.push(*instr);
                continue;
            }
            while let Some((_, op)) = gathers.next_if(|(cell, _)| *cell <= n_cells) {
                merged.push(Instr::Shard(op));
            }
            merged.push(*instr);
            while let Some((_, op)) = drops.next_if(|(cell, _)| *cell <= n_cells) {
                merged.push(Instr::Shard(op));
            }
            n_cells += 1;
        }
        merged.extend(shares.map(|(_, op)| Instr::Shard(op)));
        merged
    }
}

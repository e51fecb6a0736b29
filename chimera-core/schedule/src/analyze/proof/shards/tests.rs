use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::check::prove;
use super::*;
use crate::costs::UniformCosts;
use crate::lower::{Lowering, Sync, lower, lower_at};
use crate::program::Instr;
use crate::schedule::{Shape, find};

/// Synchronous schedules, with the shapes that fit them.
fn programs(how: &Lowering) -> Vec<Program> {
    let mut programs = Vec::new();
    for schedule in ["gpipe", "1f1b", "chimera", "interleaved", "zb-v", "hanayo", "dualpipe"] {
        for (depth, n_pipes) in [(1, 2), (2, 2), (4, 2), (4, 4)] {
            if n_pipes == 4 && schedule != "chimera" {
                continue;
            }
            let shape = Shape { n_pipes, ..Shape::new(depth, 2 * depth as u32) };
            let Ok(timetable) = find(schedule).expect("known").timetable(&shape) else { continue };
            let last = StageId(timetable.placement.n_stages() as u16 - 1);
            let tied = if last.0 > 0 { vec![vec![StageId(0), last]] } else { Vec::new() };
            for tied in [Vec::new(), tied] {
                let costs = UniformCosts::new(1.0, 2.0, 0.3);
                let how = Lowering { tied, ..how.clone() };
                programs.push(lower_at(&timetable, &how, &costs).expect("proven"));
            }
        }
    }
    programs
}

fn sharded(whole_stages: u32) -> Lowering {
    Lowering { sync: Sync::Eager, whole_stages, ..Lowering::default() }
}

fn shards(program: &Program, worker: usize) -> Vec<ShardOp> {
    let of = |instr: &Instr| match instr {
        Instr::Shard(op) => Some(*op),
        _ => None,
    };
    program.rows[worker].iter().filter_map(of).collect()
}

/// The most stages of a worker that are whole at once, and the most that one cell reads.
fn most_whole(program: &Program, worker: usize) -> (usize, usize) {
    let (mut whole, mut most, mut read) = (0, 0, 0);
    for instr in &program.rows[worker] {
        match instr {
            Instr::Shard(ShardOp::Gather(_)) => whole += 1,
            Instr::Shard(ShardOp::Drop(_)) => whole -= 1,
            Instr::Run(cell) => {
                let stages = cell.ops().filter(|op| program.reads_shards(op)).map(|op| op.stage);
                read = read.max(stages.collect::<BTreeSet<_>>().len());
            }
            _ => {}
        }
        most = most.max(whole);
    }
    (most, read)
}

#[test]
fn a_worker_has_no_more_whole_stages_than_it_may() {
    let gathered = [1, 2, 100].map(|whole_stages| {
        let mut n_gathered = 0;
        for program in programs(&sharded(whole_stages)) {
            for worker in 0..program.rows.len() {
                let (most, read) = most_whole(&program, worker);
                assert!(most <= read.max(whole_stages as usize), "{}", program.schedule);
                let all = shards(&program, worker);
                n_gathered += all.iter().filter(|op| matches!(op, ShardOp::Gather(_))).count();
            }
        }
        n_gathered
    });
    assert!(gathered[0] > gathered[1] && gathered[1] > gathered[2], "{gathered:?}");
    // With room for all, each stage of a worker is gathered once.
    let held = programs(&sharded(100)).into_iter().map(|p| {
        (0..p.rows.len() as u16).map(|w| p.placement.stages_of(WorkerId(w)).len()).sum::<usize>()
    });
    assert_eq!(gathered[2], held.sum::<usize>());
}

/// The instructions for weights come between those of the ordinary program, which stay as they are.
#[test]
fn only_instructions_for_weights_are_added() {
    let plain = programs(&Lowering { whole_stages: 0, ..sharded(1) });
    for (plain, sharded) in plain.iter().zip(programs(&sharded(1))) {
        assert!(plain.rows.iter().flatten().all(|instr| !matches!(instr, Instr::Shard(_))));
        for (before, mut row) in plain.rows.iter().zip(sharded.rows) {
            row.retain(|instr| !matches!(instr, Instr::Shard(_)));
            assert_eq!(*before, row);
        }
    }
}

#[test]
fn weights_that_are_read_while_they_are_updated_are_not_sharded() {
    let timetable = find("pipedream").expect("known").timetable(&Shape::new(2, 2)).expect("fits");
    let refusal = lower(&timetable, &sharded(1)).expect_err("no flush").to_string();
    assert!(refusal.contains("sharded weights need a flush"), "{refusal}");
}

#[test]
fn what_lacks_or_repeats_a_shard_is_refused() {
    for whole in programs(&sharded(1)) {
        for (w, row) in whole.rows.iter().enumerate() {
            for at in (0..row.len()).filter(|at| matches!(row[*at], Instr::Shard(_))) {
                let mut lacking = whole.clone();
                let instr = lacking.rows[w].remove(at);
                assert!(prove(&lacking, None).is_err(), "worker {w} without {instr:?}");
                let mut repeating = whole.clone();
                repeating.rows[w].insert(at, instr);
                assert!(prove(&repeating, None).is_err(), "worker {w} with {instr:?} twice");
            }
        }
    }
}

/// Runs the rows of a program step by step, with rows in an order of `turns`, and holds the shards
/// themselves. Returns what goes wrong.
fn wrong(program: &Program, turns: &[u8]) -> Option<String> {
    let mut at = vec![0; program.rows.len()];
    let mut mail: BTreeMap<(u16, u32), BTreeSet<(u16, u16)>> = BTreeMap::new();
    let mut held: Vec<BTreeSet<(u16, u16)>> = Vec::new();
    // A shard is a stage and its owner.
    let own = |w: u16| {
        let stages = (0..program.placement.n_stages() as u16).map(StageId);
        let its = stages.filter(|stage| program.sharers(*stage).contains(&WorkerId(w)));
        its.map(|stage| (stage.0, w)).collect::<BTreeSet<_>>()
    };
    held.extend((0..program.rows.len() as u16).map(own));
    let mut sent = BTreeSet::new();
    let (mut n_idle, mut turn) = (0, 0);
    while n_idle < 4 * program.rows.len() {
        let w = usize::from(turns[turn % turns.len()]) + turn;
        let w = if turn % 3 == 0 { turn / 3 } else { w } % program.rows.len();
        turn += 1;
        n_idle += 1;
        let Some(instr) = program.rows[w].get(at[w]) else { continue };
        match *instr {
            Instr::Send(token, _) => _ = sent.insert(token),
            Instr::Recv(token, _) if !sent.contains(&token) => continue,
            Instr::Run(cell) => {
                for op in cell.ops().filter(|op| program.reads_shards(op)) {
                    let all = program.sharers(op.stage).into_iter();
                    let mut all = all.map(|sharer| (op.stage.0, sharer.0));
                    if let Some(lacking) = all.find(|shard| !held[w].contains(shard)) {
                        return Some(format!("{op} of worker {w} lacks {lacking:?}"));
                    }
                }
            }
            Instr::Shard(ShardOp::Share(g)) => {
                mail.entry((g.to.0, g.number)).or_default().insert((g.stage.0, w as u16));
            }
            Instr::Shard(ShardOp::Gather(g)) => {
                let came = mail.entry((w as u16, g.number)).or_default();
                if came.len() < program.sharers(g.stage).len() {
                    continue;
                }
                held[w].append(came);
            }
            Instr::Shard(ShardOp::Drop(stage)) => {
                held[w].retain(|(of, owner)| *of != stage.0 || *owner == w as u16);
            }
            _ => {}
        }
        at[w] += 1;
        n_idle = 0;
    }
    let is_done = at.iter().zip(&program.rows).all(|(at, row)| *at == row.len());
    (!is_done).then(|| format!("workers wait at {at:?}"))
}

/// A random edit of one of a program's instructions for weights.
fn edited(program: &Program, [which, how, to, by]: [usize; 4]) -> Program {
    let mut edited = program.clone();
    let is_shard = |instr: &Instr| matches!(instr, Instr::Shard(_));
    let places = program.rows.iter().enumerate();
    let places: Vec<(usize, usize)> = places
        .flat_map(|(w, row)| (0..row.len()).filter(|at| is_shard(&row[*at])).map(move |at| (w, at)))
        .collect();
    let (w, at) = places[which % places.len()];
    let n_workers = program.rows.len();
    let row = &mut edited.rows[w];
    let Instr::Shard(op) = row[at] else { return edited };
    let stage = StageId((by % (program.placement.n_stages() + 1)) as u16);
    let worker = WorkerId((by % (n_workers + 1)) as u16);
    let of = |op: ShardOp, change: &dyn Fn(&mut Gathering)| match op {
        ShardOp::Share(mut of) => {
            change(&mut of);
            ShardOp::Share(of)
        }
        ShardOp::Gather(mut of) => {
            change(&mut of);
            ShardOp::Gather(of)
        }
        ShardOp::Drop(_) => ShardOp::Drop(stage),
    };
    match how % 8 {
        0 => _ = row.remove(at),
        1 => row.insert(to % (row.len() + 1), Instr::Shard(op)),
        // Moves far, and near.
        2 => {
            row.remove(at);
            row.insert(to % (row.len() + 1), Instr::Shard(op));
        }
        3 => {
            let last = row.len() - 1;
            row.swap(at, (at + 1 + by % 3).min(last));
        }
        4 => row.swap(at, at.saturating_sub(1 + by % 3)),
        5 => row[at] = Instr::Shard(of(op, &|of| of.stage = stage)),
        6 => row[at] = Instr::Shard(of(op, &|of| of.number = (by % 5) as u32)),
        _ => row[at] = Instr::Shard(of(op, &|of| of.to = worker)),
    }
    edited
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each edit is refused in words, or the program still runs right, whoever comes first.
    #[test]
    fn random_edits_are_refused_or_run(
        edits in prop::collection::vec((any::<[u16; 4]>(), any::<[u8; 7]>()), 40),
        n_whole in 1u32..3,
    ) {
        let programs = programs(&sharded(n_whole));
        let (mut n_refused, mut n_proven) = (0, 0);
        for (nth, (edit, turns)) in edits.into_iter().enumerate() {
            let program = edited(&programs[nth % programs.len()], edit.map(usize::from));
            match prove(&program, None) {
                Ok(_) => {
                    prop_assert_eq!(wrong(&program, &turns), None);
                    n_proven += 1;
                }
                Err(refusal) => {
                    prop_assert!(refusal.to_string().len() > 40, "{}", refusal);
                    n_refused += 1;
                }
            }
        }
        prop_assert!(n_refused > 0 && n_proven > 0, "{} refused, {} proven", n_refused, n_proven);
    }
}

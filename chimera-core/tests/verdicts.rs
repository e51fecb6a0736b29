//! A rank that stops anywhere is named by every rank that then waits, however long the chain.

use chimera_core::analyze::verdict::Kind;
use chimera_core::analyze::{HangReport, Need};
use chimera_core::comm::Position;
use chimera_core::ids::{BucketId, Rank, WorkerId};
use chimera_core::lower::{Lowering, Sync, lower};
use chimera_core::program::{Instr, Program};
use chimera_core::schedule::{Shape, find};

const STEP: u64 = 7;

/// Ranks that run their rows as far as they can beside one that stops.
struct Stopped<'p> {
    program: &'p Program,
    /// By rank: index of the next instruction.
    at: Vec<usize>,
    /// Who stops, and before which instruction.
    stop: (Rank, usize),
}

impl Stopped<'_> {
    fn row(&self, rank: usize) -> &[Instr] {
        &self.program.rows()[rank % self.program.rows().len()]
    }

    fn rank_of(&self, worker: WorkerId, beside: usize) -> usize {
        let n_workers = self.program.rows().len();
        beside / n_workers * n_workers + worker.index()
    }

    fn members(&self, bucket: BucketId) -> Vec<usize> {
        let groups = (0..self.at.len()).step_by(self.program.rows().len());
        let members = &self.program.buckets()[bucket.index()].members;
        groups.flat_map(|first| members.iter().map(move |w| first + w.index())).collect()
    }

    fn is_past(&self, rank: usize, what: impl Fn(&Instr) -> bool) -> bool {
        self.row(rank).iter().position(what).is_some_and(|index| self.at[rank] > index)
    }

    /// Whom a rank waits for, if it cannot go on, and what it needs.
    fn waits_for(&self, rank: usize) -> Option<(usize, Need)> {
        match *self.row(rank).get(self.at[rank])? {
            Instr::Recv(token, channel) => {
                let from = self.rank_of(self.program.channels()[channel.index()].from, rank);
                let sent = |i: &Instr| matches!(i, Instr::Send(t, _) if *t == token);
                (!self.is_past(from, sent)).then_some((from, Need::Token(token)))
            }
            Instr::Await(bucket) => {
                let others = || self.members(bucket).into_iter().filter(|m| *m != rank);
                let began = |m: &usize| self.is_past(*m, |i| *i == Instr::Reduce(bucket));
                if let Some(behind) = others().find(|m| !began(m)) {
                    return Some((behind, Need::Part(bucket)));
                }
                // Whoever runs gives its sum as soon as it can; who stopped on the way there does not.
                let (stopped, at) = (self.stop.0.index(), self.stop.1);
                let sums_at = self.row(stopped).iter().position(|i| *i == Instr::Await(bucket))?;
                (others().any(|m| m == stopped) && self.at[stopped] == at && at < sums_at)
                    .then_some((stopped, Need::Sum(bucket)))
            }
            Instr::Agree => {
                let is_there = |r: &usize| {
                    let agree = self.row(*r).iter().position(|i| *i == Instr::Agree);
                    let has_begun = |agree| self.stop != (Rank(*r as u32), agree);
                    agree.is_some_and(|agree| self.at[*r] >= agree && has_begun(agree))
                };
                (0..self.at.len()).find(|r| !is_there(r)).map(|r| (r, Need::Record))
            }
            _ => None,
        }
    }

    fn run(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for rank in 0..self.at.len() {
                let is_stopped = (Rank(rank as u32), self.at[rank]) == self.stop;
                let has_ended = self.at[rank] == self.row(rank).len();
                if !is_stopped && !has_ended && self.waits_for(rank).is_none() {
                    self.at[rank] += 1;
                    moved = true;
                }
            }
        }
    }

    /// The verdicts of all that wait, if `is_silent` about a rank that does not answer.
    fn judge(&self, is_silent: bool) {
        let position = |instr: &usize| Some(Position::At { step: STEP, instr: *instr as u32 });
        let mut positions: Vec<_> = self.at.iter().map(position).collect();
        if is_silent {
            positions[self.stop.0.index()] = None;
        }
        let (program, earlier) = (self.program, positions.clone());
        let scene = HangReport { program, step: STEP, positions, earlier };
        let kind = if is_silent { Kind::Silent } else { Kind::Stalled };
        let mut n_waiting = 0;
        for rank in (0..self.at.len()).filter(|r| *r != self.stop.0.index()) {
            let Some((from, need)) = self.waits_for(rank) else { continue };
            let verdict = scene.verdict(Rank(rank as u32), Rank(from as u32), need);
            assert_eq!((verdict.kind, verdict.rank), (kind, self.stop.0), "{:?}{verdict}", self.at);
            n_waiting += 1;
        }
        let is_behind_all = self.is_past(self.stop.0.index(), |i| *i == Instr::Agree);
        assert!(n_waiting > 0 || is_behind_all, "nobody waits for {:?}", self.stop);
    }
}

#[test]
fn whoever_stops_is_named_by_all_who_wait() {
    let chimera = |n_pipes| Shape { n_pipes, ..Shape::new(4, 6) };
    for (schedule, shape, width, sync) in [
        ("dapple", Shape::new(3, 4), 1, Sync::AtEnd),
        ("gpipe", Shape::new(2, 2), 2, Sync::Eager),
        ("chimera", chimera(2), 1, Sync::EagerOpt),
        ("chimera", chimera(2), 2, Sync::Eager),
        ("chimera", chimera(4), 1, Sync::Eager),
        ("zb-h1", Shape::new(3, 4), 2, Sync::AtEnd),
        ("interleaved", Shape::new(2, 4), 1, Sync::EagerOpt),
    ] {
        let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
        let how = Lowering { sync, ..Lowering::default() };
        let program = lower(&timetable, &how).expect("proven");
        let n_ranks = width * program.rows().len();
        for rank in 0..n_ranks {
            let row = &program.rows()[rank % program.rows().len()];
            for (index, instr) in row.iter().enumerate() {
                let stop = (Rank(rank as u32), index);
                let mut ranks = Stopped { program: &program, at: vec![0; n_ranks], stop };
                ranks.run();
                assert_eq!(ranks.at[rank], index, "it gets there");
                ranks.judge(true);
                // Who is at a wait that has ended looks like one whose message was lost.
                if matches!(instr, Instr::Run(_) | Instr::Send(..) | Instr::Reduce(_)) {
                    ranks.judge(false);
                }
            }
        }
    }
}

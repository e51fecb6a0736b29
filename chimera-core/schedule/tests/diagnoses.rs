//! If a rank stops anywhere, every rank that then waits names it, however long the chain.

use std::collections::HashMap;

use chimera_schedule::analyze::Position;
use chimera_schedule::analyze::diagnosis::Kind;
use chimera_schedule::analyze::{HangReport, Need};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::effects::Token;
use chimera_schedule::few::Few;
use chimera_schedule::ids::{BucketId, Rank, WorkerId};
use chimera_schedule::lower::{Lowering, Sync, bpipe, lower, offload};
use chimera_schedule::op::Lane;
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::schedule::{Shape, find};

const STEP: u64 = 7;

/// Ranks that run their rows as far as they can while one has stopped.
struct Stopped<'p> {
    program: &'p Program,
    /// For each worker, the lane that makes a token, and its place in the row.
    makers: &'p [HashMap<Token, (Lane, usize)>],
    /// Index of the next instruction, by rank and lane.
    at: Vec<[usize; 2]>,
    /// The rank that stops, and the compute instruction before which it stops.
    stop: (Rank, usize),
    has_stopped: bool,
}

/// The reason that a lane does not go on.
enum Blocked {
    /// It needs this from another rank.
    By(usize, Need),
    /// It needs a token of its rank's other lane.
    ByOtherLane,
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
        let row = self.row(rank);
        let is_done = |index: usize| self.at[rank][row[index].lane().index()] > index;
        row.iter().position(what).is_some_and(is_done)
    }

    /// The next instruction of a lane.
    fn next(&self, rank: usize, lane: Lane) -> Option<usize> {
        let at = self.at[rank][lane.index()];
        let left = self.row(rank)[at..].iter().position(|instr| instr.lane() == lane);
        left.map(|next| at + next)
    }

    /// Returns true if the other lane of a rank has not made what an instruction eats.
    fn lacks(&self, rank: usize, instr: &Instr) -> bool {
        let makers = &self.makers[rank % self.makers.len()];
        let is_lacking = |token: &Token| {
            makers.get(token).is_some_and(|(lane, index)| {
                *lane != instr.lane() && self.at[rank][lane.index()] <= *index
            })
        };
        match instr {
            Instr::Run(cell) => self.program.rules().cell_effects(cell).eats.iter().any(is_lacking),
            Instr::Take(token) => is_lacking(token),
            _ => false,
        }
    }

    /// The reason that a lane cannot go on, if it cannot.
    fn blocked(&self, rank: usize, lane: Lane) -> Option<Blocked> {
        let instr = self.row(rank)[self.next(rank, lane)?];
        let has_moves = self.program.rules().has_moves();
        if has_moves && self.lacks(rank, &instr) {
            return Some(Blocked::ByOtherLane);
        }
        let by = |(rank, need)| Blocked::By(rank, need);
        match instr {
            Instr::Recv(token, channel) => {
                let from = self.rank_of(self.program.channels()[channel.index()].from, rank);
                let sent = |i: &Instr| matches!(i, Instr::Send(t, _) if *t == token);
                (!self.is_past(from, sent)).then_some(by((from, Need::Token(token))))
            }
            Instr::Await(bucket) => {
                let others = || self.members(bucket).into_iter().filter(|m| *m != rank);
                let began = |m: &usize| self.is_past(*m, |i| *i == Instr::Reduce(bucket));
                if let Some(behind) = others().find(|m| !began(m)) {
                    return Some(by((behind, Need::Part(bucket))));
                }
                // A running rank provides its sum as soon as it can; one that stopped on the way
                // does not.
                let (stopped, at) = (self.stop.0.index(), self.stop.1);
                let sums_at = self.row(stopped).iter().position(|i| *i == Instr::Await(bucket))?;
                (others().any(|m| m == stopped) && self.has_stopped && at < sums_at)
                    .then_some(by((stopped, Need::Sum(bucket))))
            }
            Instr::Agree if self.next(rank, Lane::Moves).is_some() => Some(Blocked::ByOtherLane),
            Instr::Agree => {
                let is_there = |r: &usize| {
                    let agree = self.row(*r).iter().position(|i| *i == Instr::Agree);
                    let has_begun = |agree| self.stop != (Rank(*r as u32), agree);
                    let has_moved = self.next(*r, Lane::Moves).is_none();
                    let is_at = |agree| self.at[*r][Lane::Compute.index()] >= agree;
                    agree.is_some_and(|agree| is_at(agree) && has_moved && has_begun(agree))
                };
                (0..self.at.len()).find(|r| !is_there(r)).map(|r| by((r, Need::Record)))
            }
            _ => None,
        }
    }

    /// The rank that a blocked rank waits for, and the need.
    fn waits_for(&self, rank: usize) -> Option<(usize, Need)> {
        match self.blocked(rank, Lane::Compute)? {
            Blocked::By(from, need) => Some((from, need)),
            Blocked::ByOtherLane => match self.blocked(rank, Lane::Moves)? {
                Blocked::By(from, need) => Some((from, need)),
                Blocked::ByOtherLane => panic!("both lanes of {rank} wait for each other"),
            },
        }
    }

    fn run(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for rank in 0..self.at.len() {
                // Moves go first, as in the engine.
                for lane in [Lane::Moves, Lane::Compute] {
                    let is_stopped = self.has_stopped && rank == self.stop.0.index();
                    let Some(next) = self.next(rank, lane).filter(|_| !is_stopped) else {
                        continue;
                    };
                    let is_stop = self.stop == (Rank(rank as u32), next);
                    // With moves, a blocked lane lets the other one continue.
                    if is_stop
                        && (!self.program.rules().has_moves() || self.blocked(rank, lane).is_none())
                    {
                        self.has_stopped = true;
                        self.at[rank][lane.index()] = next;
                    } else if self.blocked(rank, lane).is_none() {
                        self.at[rank][lane.index()] = next + 1;
                        moved = true;
                    }
                }
            }
        }
    }

    /// Index of the next instruction of compute, as a rank reports it.
    fn position(&self, rank: usize) -> u32 {
        self.next(rank, Lane::Compute).unwrap_or(self.row(rank).len()) as u32
    }

    /// Checks the diagnoses of all waiting ranks; `is_silent` if the stopped rank does not answer.
    fn judge(&self, is_silent: bool) {
        let position = |rank| Some(Position::At { step: STEP, instr: self.position(rank) });
        let mut positions: Vec<_> = (0..self.at.len()).map(position).collect();
        if is_silent {
            positions[self.stop.0.index()] = None;
        }
        let (program, earlier) = (self.program, positions.clone());
        let scene = HangReport { program, step: STEP, positions, earlier };
        let kind = if is_silent { Kind::Silent } else { Kind::Stalled };
        let mut n_waiting = 0;
        for rank in (0..self.at.len()).filter(|r| *r != self.stop.0.index()) {
            let Some((from, need)) = self.waits_for(rank) else { continue };
            let diagnosis = scene.diagnosis(Rank(rank as u32), Rank(from as u32), need);
            assert_eq!(
                (diagnosis.kind, diagnosis.rank),
                (kind, self.stop.0),
                "{:?}{diagnosis}",
                self.at
            );
            n_waiting += 1;
        }
        let is_behind_all = self.is_past(self.stop.0.index(), |i| *i == Instr::Agree);
        assert!(n_waiting > 0 || is_behind_all, "nobody waits for {:?}", self.stop);
    }
}

fn makers(program: &Program, row: &[Instr]) -> HashMap<Token, (Lane, usize)> {
    let mut makers = HashMap::new();
    for (index, instr) in row.iter().enumerate() {
        let made = match instr {
            Instr::Run(cell) => program.rules().cell_effects(cell).makes,
            Instr::Give(token) => Few::repeat(*token, 1),
            _ => Few::new(),
        };
        makers.extend(made.into_iter().map(|token| (token, (instr.lane(), index))));
    }
    makers
}

/// Stops each rank before each instruction of its compute.
fn check(program: &Program, width: usize) {
    let n_ranks = width * program.rows().len();
    let makers: Vec<_> = program.rows().iter().map(|row| makers(program, row)).collect();
    for rank in 0..n_ranks {
        let row = &program.rows()[rank % program.rows().len()];
        for (index, instr) in row.iter().enumerate() {
            if instr.lane() == Lane::Moves {
                continue;
            }
            let stop = (Rank(rank as u32), index);
            let at = vec![[0; 2]; n_ranks];
            let mut ranks = Stopped { program, makers: &makers, at, stop, has_stopped: false };
            ranks.run();
            assert_eq!(ranks.position(rank) as usize, index, "it gets there");
            ranks.judge(true);
            // A rank at a wait that has ended looks like one whose message was lost.
            if !matches!(instr, Instr::Recv(..) | Instr::Await(_) | Instr::Agree | Instr::Step(_)) {
                ranks.judge(false);
            }
        }
    }
}

#[test]
fn a_stopped_rank_is_named_by_all_that_wait() {
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
        check(&lower(&timetable, &how).expect("proven"), width);
    }
}

/// Ranks that wait for memory, or for activations to come back, wait for the rank that their moves
/// wait for.
#[test]
fn a_stopped_rank_is_named_by_all_that_wait_with_moves_too() {
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    for (schedule, shape, width) in [
        ("1f1b", Shape::new(4, 6), 1),
        ("1f1b", Shape::new(6, 9), 1),
        ("1f1b", Shape::new(4, 5), 2),
        ("interleaved", Shape::new(4, 8), 1),
    ] {
        let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
        let moved = bpipe(timetable, &costs).expect("sound");
        check(&lower(&moved, &Lowering::default()).expect("proven"), width);
    }
    let how = Lowering { max_peak: Some(3.0), ..Lowering::default() };
    let timetable = find("gpipe").expect("known").timetable(&Shape::new(2, 6)).expect("fits");
    let moved = offload(timetable, &how, &costs).expect("sound");
    check(&lower(&moved, &how).expect("proven"), 1);
}

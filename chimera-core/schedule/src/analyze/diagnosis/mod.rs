//! Diagnosis of a wait that does not end: the first rank that does not advance, and what it is in.
//!
//! Every rank knows the positions of all ranks, so it also knows what each of them waits for, and
//! from whom. The rank that waited too long starts a chain: it waits for a rank, which waits for
//! another, until one is found that waits for nobody. Since programs are proven, there always is one:
//!
//! ```text
//! rank 3  ▸ Recv gradient 5      waits for rank 2
//! rank 2  ▸ Recv gradient 5      waits for rank 1
//! rank 1  ▸ Run B(stage 2, 5)    stalled in compute
//! ```

mod moves;
mod position;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;

use self::moves::MoveProgress;
pub use self::position::Position;
use crate::effects::Token;
use crate::ir::ids::{BucketId, ChannelId, Rank, WorkerId};
use crate::ir::op::Lane;
use crate::program::{Instr, Program, ShardOp};

/// The state of a job in which a wait has lasted too long.
#[derive(Clone, Debug)]
pub struct HangReport<'p> {
    /// The program of every pipeline group.
    pub program: &'p Program,
    /// The first step of the current run of the program.
    pub step: u64,
    /// The position of every rank; `None` for ranks that do not answer.
    pub positions: Vec<Option<Position>>,
    /// The positions a moment earlier.
    pub earlier: Vec<Option<Position>>,
}

/// Something that a rank needs from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A message.
    Token(Token),
    /// Its part of a sum.
    Part(BucketId),
    /// A sum that the rank itself computes.
    Sum(BucketId),
    /// Its record in the step sync.
    Record,
    /// Something outside of the program, such as a sample to evaluate or a comparison.
    Other,
}

/// The cause of a wait that did not end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnosis {
    /// The kind of cause.
    pub kind: Kind,
    /// The rank that is the first not to advance; of a lost message, its sender.
    pub rank: Rank,
    /// The chain of waits from the rank that was asked for to the one that does not advance.
    words: String,
}

/// The kinds of causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The rank waits for nobody and does not advance.
    Stalled,
    /// The rank was asked while it did advance.
    Slow,
    /// The rank does not answer.
    Silent,
    /// The message or part was sent, but has not arrived.
    Lost,
    /// The ranks wait for each other, which the proof excludes.
    Cycle,
}

/// The wait of a rank.
enum Wait {
    /// Another rank has to provide something.
    For(Rank, Need),
    /// It waits for nobody.
    Nobody,
    /// It waits for something that was already sent.
    Sent,
}

/// Describes the rank that was asked for, starting with `; rank 2 …` or `, which waits for …`.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Token(token) => write!(f, "{token}"),
            Need::Part(bucket) => write!(f, "its part of the gradient reduction of {bucket}"),
            Need::Sum(bucket) => write!(f, "the gradient reduction of {bucket}"),
            Need::Record => write!(f, "its part of the agreement"),
            Need::Other => write!(f, "something outside of the program"),
        }
    }
}

impl HangReport<'_> {
    /// Diagnoses why `by` waits in vain for `need` from `from`. The two are the same rank if the
    /// transport computes the sum.
    pub fn diagnosis(&self, by: Rank, from: Rank, need: Need) -> Diagnosis {
        let (waits_on, token) = match need {
            Need::Token(token) => (Instr::Recv(token, ChannelId(0)).lane(), Some(token)),
            _ => (Lane::Compute, None),
        };
        let mut seen: Vec<_> = (from != by).then_some((by, waits_on)).into_iter().collect();
        let mut rank = from;
        let mut need = need;
        let mut words = String::new();
        let moves = MoveProgress::of(self, (by, token));
        loop {
            let end =
                |kind, what: String| Diagnosis { kind, rank, words: format!("{words}{what}") };
            let goes_on = self.earlier.get(rank.index()) != self.positions.get(rank.index());
            let Some(position) = self.positions.get(rank.index()).copied().flatten() else {
                let known = self.known(rank);
                let what = format!(
                    "; {rank} does not answer and is known to have finished {}: stopped, or out of reach",
                    self.last_finished(rank, known)
                );
                return end(Kind::Silent, what);
            };
            if goes_on {
                let doing = self.doing(rank);
                return end(Kind::Slow, format!("; {rank} {doing}: slow, but it goes on"));
            }
            let has_given = self.has_given(&moves, rank, position, need);
            let is_sending = matches!(self.instr(rank), Some(Instr::Send(..)));
            // A transport with one order for all may delay a message while one to a silent rank is
            // due.
            if (has_given || is_sending)
                && let Some(silent) = self.silent()
            {
                words += &self.held_up(rank, has_given);
                (rank, need) = (silent, Need::Other);
                continue;
            }
            if has_given {
                let what = format!("; {rank} sent it and {}: lost on the way", self.doing(rank));
                return end(Kind::Lost, what);
            }
            let lane = self.lane_of(rank, need);
            if seen.contains(&(rank, lane)) {
                let what = "; so they wait for each other, which a proven program cannot: a bug";
                return end(Kind::Cycle, what.into());
            }
            seen.push((rank, lane));
            // Outside of the program all wait for all.
            let wait = match self.silent() {
                Some(silent) if self.instr(rank).is_none() => Wait::For(silent, Need::Other),
                _ => self.wait(&moves, (rank, lane), position),
            };
            let (next, needs) = match wait {
                Wait::For(next, needs) => (next, needs),
                Wait::Nobody => {
                    let doing = self.doing(rank);
                    let place = self.place(&moves, rank);
                    return end(Kind::Stalled, format!("; {rank} {doing}: stalled {place}"));
                }
                Wait::Sent => {
                    let what = format!("; {rank} {}, which all have sent", self.doing(rank));
                    return end(Kind::Lost, format!("{what}: lost on the way"));
                }
            };
            words += &format!(", which waits for {needs} from {next}");
            (rank, need) = (next, needs);
        }
    }

    /// Returns true if the rank that a diagnosis names should have advanced between the two
    /// observations but has not: it does not answer, or stays at an instruction. Between steps a
    /// rank may write files, for as long as that takes.
    pub fn stands_still(&self, diagnosis: &Diagnosis) -> bool {
        match diagnosis.kind {
            Kind::Silent => true,
            Kind::Stalled => self.instr(diagnosis.rank).is_some(),
            Kind::Slow | Kind::Lost | Kind::Cycle => false,
        }
    }

    /// The first rank that does not answer.
    fn silent(&self) -> Option<Rank> {
        let is_silent = self.positions.iter().position(Option::is_none)?;
        Some(Rank(is_silent as u32))
    }

    /// Returns true if a rank at `position` has given what is needed.
    fn has_given(&self, moves: &MoveProgress, rank: Rank, position: Position, need: Need) -> bool {
        let at = match position {
            Position::At { step, instr } if step == self.step => instr as usize,
            Position::At { step, .. } => return step > self.step,
            Position::Start => return false,
        };
        let is_past = |what: Instr| self.index(rank, what).is_some_and(|index| at > index);
        match need {
            Need::Token(token) => {
                self.sends(rank, token).is_some_and(|index| match self.row(rank)[index].lane() {
                    Lane::Compute => at > index,
                    Lane::Moves => moves.has_done(rank, index),
                })
            }
            Need::Part(bucket) => is_past(Instr::Reduce(bucket)),
            Need::Sum(bucket) => is_past(Instr::Await(bucket)),
            Need::Record => is_past(Instr::Agree),
            Need::Other => false,
        }
    }

    /// The lane on which a rank does what another needs.
    fn lane_of(&self, rank: Rank, need: Need) -> Lane {
        let Need::Token(token) = need else { return Lane::Compute };
        self.sends(rank, token).map_or(Lane::Compute, |index| self.row(rank)[index].lane())
    }

    /// Index of the instruction by which a rank sends a token.
    fn sends(&self, rank: Rank, token: Token) -> Option<usize> {
        let sends = |instr: &Instr| matches!(instr, Instr::Send(t, _) if *t == token);
        self.row(rank).iter().position(sends)
    }

    fn wait(&self, moves: &MoveProgress, (rank, lane): (Rank, Lane), position: Position) -> Wait {
        let Position::At { step, .. } = position else { return Wait::Nobody };
        if step != self.step {
            return Wait::Nobody;
        }
        let Some(instr) = self.instr(rank) else { return Wait::Nobody };
        // Compute may wait for its moves, and moves for a message or for compute.
        let awaits_moves = moves.are_awaited(self, rank);
        let awaited = match moves.received(self, rank) {
            Some(received) if lane == Lane::Moves || awaits_moves => received,
            _ if awaits_moves => return Wait::Nobody,
            _ => instr,
        };
        match awaited {
            Instr::Recv(token, channel) => {
                let from = self.program.channels()[channel.index()].from;
                Wait::For(self.beside(rank, from), Need::Token(token))
            }
            Instr::Await(bucket) => {
                let members = || self.replicas(bucket).into_iter().filter(|m| *m != rank);
                if let Some(behind) = self.first_behind(members(), Instr::Reduce(bucket)) {
                    return Wait::For(behind, Need::Part(bucket));
                }
                // All parts are sent, so it waits for a sum of a rank that does something else.
                match self.first_behind(members(), instr) {
                    Some(busy) if self.instr(busy) != Some(instr) => {
                        Wait::For(busy, Need::Sum(bucket))
                    }
                    _ => Wait::Sent,
                }
            }
            Instr::Agree => {
                let others = (0..self.positions.len() as u32).map(Rank).filter(|r| *r != rank);
                match self.first_behind(others, Instr::Agree) {
                    Some(behind) if self.instr(behind) != Some(instr) => {
                        Wait::For(behind, Need::Record)
                    }
                    _ => Wait::Nobody, // it takes time to make a record, too
                }
            }
            Instr::Shard(ShardOp::Gather(of)) => {
                let placement = self.program.placement();
                let groups = 0..self.positions.len() / placement.n_workers();
                let sharers = self.program.sharers(of.stage);
                let of_group = |group| sharers.iter().map(move |w| placement.rank(group, *w));
                let others = groups.flat_map(of_group).filter(|r| *r != rank);
                let behind = self.first_behind(others, Instr::Shard(ShardOp::Share(of)));
                behind.map_or(Wait::Sent, |behind| Wait::For(behind, Need::Other))
            }
            Instr::Run(_)
            | Instr::Shard(_)
            | Instr::Send(..)
            | Instr::Reduce(_)
            | Instr::Step(_)
            | Instr::Give(_)
            | Instr::Take(_) => Wait::Nobody,
        }
    }

    /// The rank with the least progress among those that have not passed `what`. A rank that does
    /// not answer comes first.
    fn first_behind(&self, ranks: impl Iterator<Item = Rank>, what: Instr) -> Option<Rank> {
        let behind = |rank: &Rank| match self.positions[rank.index()] {
            None => Some(0),
            Some(Position::Start) => Some(1),
            Some(Position::At { step, .. }) if step != self.step => (step < self.step).then_some(2),
            Some(Position::At { instr, .. }) => {
                let index = self.index(*rank, what)?;
                let instr = instr as usize;
                (instr <= index).then_some(if instr == index { 4 } else { 3 })
            }
        };
        let ranked = ranks.filter_map(|rank| Some((behind(&rank)?, rank)));
        ranked.min().map(|(_, rank)| rank)
    }

    /// The position that a rank must have reached, given the positions of the others.
    fn known(&self, rank: Rank) -> Position {
        let mut known = Position::Start;
        for (other, position) in (0..).map(Rank).zip(&self.positions) {
            let Some(Position::At { step, instr }) = *position else { continue };
            if step != self.step || other == rank {
                continue;
            }
            // Positions are those of the compute lane.
            let done = self.row(other).iter().take(instr as usize);
            for done in done.filter(|instr| instr.lane() == Lane::Compute) {
                let is_its = match *done {
                    Instr::Recv(_, channel) => {
                        let from = self.program.channels()[channel.index()].from;
                        self.beside(other, from) == rank
                    }
                    instr => instr.awaited().is_none_or(|b| self.replicas(b).contains(&rank)),
                };
                let given = done.counterpart().filter(|_| is_its);
                if let Some(index) = given.and_then(|given| self.index(rank, given)) {
                    known = known.max(Position::At { step: self.step, instr: index as u32 + 1 });
                }
            }
        }
        known
    }

    /// The instruction that a rank is at, if it is in this run of the program.
    fn instr(&self, rank: Rank) -> Option<Instr> {
        match self.positions[rank.index()]? {
            Position::At { step, instr } if step == self.step => {
                self.row(rank).get(instr as usize).copied()
            }
            _ => None,
        }
    }

    fn index(&self, rank: Rank, what: Instr) -> Option<usize> {
        self.row(rank).iter().position(|instr| *instr == what)
    }

    fn row(&self, rank: Rank) -> &[Instr] {
        let (_, worker) = self.program.placement().group_and_worker(rank);
        &self.program.rows()[worker.index()]
    }

    /// The rank of a worker in another rank's group.
    fn beside(&self, rank: Rank, worker: WorkerId) -> Rank {
        let placement = self.program.placement();
        placement.rank(placement.group_and_worker(rank).0, worker)
    }

    fn replicas(&self, bucket: BucketId) -> Vec<Rank> {
        let width = self.positions.len() / self.program.placement().n_workers();
        self.program.replicas(width, bucket)
    }
}

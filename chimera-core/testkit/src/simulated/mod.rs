//! A transport that runs one rank at a time, in an order that is drawn from a seed.
//!
//! At each call of the transport another rank may go on, a message is delayed, and a rank may die.
//! The thread of a dying rank unwinds, the others learn of it later, and the rank comes back
//! without any state, like a process that replaces a dead one. A rank may also stall: it makes no
//! more calls until the others evict it, and then dies. A run of the whole engine, with deaths at
//! any instruction, takes milliseconds, and a failing run can be reproduced from its seed. Time is
//! counted in turns; the real duration of waits has no effect.

mod core;
mod scheduler;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimera_engine::fault::{Fault, panicked};
use chimera_schedule::ids::Rank;

use chimera_engine::comm::Mailbox;
use chimera_engine::comm::{
    AllReduce, Comm, CommError, Endpoint, Evict, Liveness, Meeting, Position, Rendezvous, Tag,
};
use scheduler::{Scheduler, Turn};

/// The events of a simulated run that do not come from its ranks.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Seed of the order of ranks and the delays of messages.
    pub seed: u64,
    /// Largest delay of a message, in turns.
    pub most_delay: u64,
    /// Ranks that die.
    pub deaths: Vec<Death>,
    /// Ranks that stall, at a call like deaths; they die when they are evicted.
    pub stalls: Vec<Death>,
    /// Number of turns for which a dead rank stays away. The others meet without it; when it comes
    /// back, all meet again with it. `None` if all wait for it.
    pub away: Option<u64>,
}

/// A rank's death or stall, at its `call`-th call of the transport over all its lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// The rank that dies or stalls.
    pub rank: Rank,
    /// Number of the call, from 1.
    pub call: u64,
}

/// The results of a simulated run.
#[derive(Debug)]
pub struct Simulated<R> {
    /// The result of each rank in its last life, by rank.
    pub outcomes: Vec<Result<R, Fault>>,
    /// Number of transport calls of each rank over all its lives.
    pub calls: Vec<u64>,
    /// Number of meetings.
    pub n_meetings: u64,
}

/// Runs `body` once per rank, each on a thread of its own, and again for each rank that dies.
pub fn run<T: Send + 'static, R: Send>(
    n_ranks: u32,
    plan: &Plan,
    body: impl Fn(&mut Berth<T>) -> Result<R, Fault> + Sync,
) -> Simulated<R> {
    let scheduler = Arc::new(Scheduler::new(n_ranks, plan.clone()));
    let here = core::current();
    let live = |rank: Rank| {
        core::stay_on(here);
        let mut berth = Berth { rank, scheduler: Arc::clone(&scheduler) };
        berth.scheduler.begin(rank);
        let outcome = loop {
            break match catch_unwind(AssertUnwindSafe(|| body(&mut berth))) {
                Err(cause) if cause.is::<Killed>() => {
                    scheduler.stay_away(rank);
                    continue;
                }
                Err(cause) => Err(panicked(rank, &*cause)),
                Ok(outcome) => outcome,
            };
        };
        let end = outcome.as_ref().map(|_| ()).map_err(Fault::clone);
        scheduler.end(rank, end);
        outcome
    };
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..n_ranks).map(Rank).map(|rank| scope.spawn(move || live(rank))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let (calls, n_meetings) = scheduler.counts();
    Simulated { outcomes, calls, n_meetings }
}

/// The panic payload with which the thread of a dying rank unwinds.
struct Killed;

/// The place where one rank waits for the others.
pub struct Berth<T> {
    rank: Rank,
    scheduler: Arc<Scheduler<T>>,
}

impl<T: Send + 'static> Berth<T> {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}

impl<T: Send + 'static> Rendezvous<End<T>> for Berth<T> {
    fn meet(&mut self) -> Result<Option<Meeting<End<T>>>, CommError> {
        let Some((number, met)) = self.scheduler.meet(self.rank)? else { return Ok(None) };
        let scheduler = Arc::clone(&self.scheduler);
        let present = met.present.clone();
        let rank = Rank(present.partition_point(|rank| *rank < self.rank) as u32);
        let comm = End { rank, of_all: self.rank, met, scheduler };
        Ok(Some(Meeting { comm, is_first: number == 1, present }))
    }
}

/// The ranks of a meeting.
struct Met<T> {
    /// The ranks' numbers among all ranks, ascending.
    present: Vec<Rank>,
    /// By rank in the meeting.
    mailboxes: Vec<Mailbox<T>>,
}

/// One rank's end of the transport.
pub struct End<T: Send + 'static> {
    rank: Rank,
    /// This rank's number among all ranks.
    of_all: Rank,
    met: Arc<Met<T>>,
    scheduler: Arc<Scheduler<T>>,
}

impl<T: Send + 'static> End<T> {
    fn others(&self) -> impl Iterator<Item = Rank> + use<T> {
        let me = self.rank;
        (0..self.met.mailboxes.len() as u32).map(Rank).filter(move |rank| *rank != me)
    }

    fn check_rank(&self, rank: Rank) -> Result<(), CommError> {
        let n_ranks = self.met.mailboxes.len();
        if rank.index() < n_ranks {
            Ok(())
        } else {
            Err(CommError::Failed(format!("{rank} is not one of the {n_ranks} ranks")))
        }
    }

    /// Waits until `look` finds something in this rank's mailbox, or finds that nothing will come.
    fn wait<R>(
        &self,
        deadline: Instant,
        look: impl Fn(&Mailbox<T>) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        let is_short = deadline.saturating_duration_since(Instant::now()) < SHORT;
        let (mut turn, mut is_over) = (self.turn(), false);
        loop {
            let found = look(&self.met.mailboxes[self.rank.index()]);
            if !matches!(found, Err(CommError::Timeout { .. })) {
                return found;
            }
            if turn.is_stuck() {
                return Err(stuck());
            }
            if is_over {
                return found;
            }
            turn = turn.pass(!is_short);
            is_over = is_short || turn.is_too_late();
        }
    }

    /// This rank's turn, after others may have had theirs. The rank may die here.
    fn turn(&self) -> Turn<'_, T> {
        self.scheduler.enter(self.of_all)
    }
}

/// Shorter waits may end before anything came: the rank looks at other things in between.
const SHORT: Duration = Duration::from_secs(1);

fn stuck() -> CommError {
    CommError::Failed("no rank can go on, and no message is under way".into())
}

impl<T: Send + 'static> Liveness for End<T> {
    fn report_progress(&mut self, position: Position) {
        self.turn().report(position);
    }

    fn query_progress(&mut self, _: Instant) -> Result<Vec<Option<Position>>, CommError> {
        let turn = self.turn();
        self.met.mailboxes[self.rank.index()].check()?;
        Ok(self.met.present.iter().map(|rank| turn.position(*rank)).collect())
    }

    fn evictor(&mut self, rank: Rank) -> Option<&mut dyn Evict> {
        if rank == self.rank { None } else { Some(self) }
    }

    fn pause(&mut self, _: Duration) {
        self.turn().pass(false);
    }

    fn request_stop(&mut self) {
        self.turn().request_stop();
    }

    fn stop_requested(&self) -> Option<bool> {
        Some(self.turn().stop_requested())
    }
}

impl<T: Send + 'static> Evict for End<T> {
    fn evict(&mut self, rank: Rank) -> bool {
        let rank = self.met.present[rank.index()];
        let mut turn = self.turn();
        assert!(turn.position(rank).is_none(), "{rank} goes on, and {} evicts it", self.of_all);
        turn.evict(rank);
        true
    }
}

impl<T: Send + 'static> Endpoint for End<T> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn n_ranks(&self) -> u32 {
        self.met.mailboxes.len() as u32
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        self.check_rank(to)?;
        let from = self.rank;
        let put = Box::new(move |mailbox: &Mailbox<T>| mailbox.put_bytes(from, bytes));
        self.turn().post_in_order((from, to), &self.met, put);
        Ok(())
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        let _turn = self.turn();
        self.met.mailboxes[self.rank.index()].try_take_bytes(from)
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.wait(deadline, |mailbox| mailbox.take_bytes(from, Instant::now()))
    }

    fn abort(&mut self, cause: &Fault) {
        let mut turn = self.turn();
        self.met.mailboxes[self.rank.index()].abort(cause);
        for to in self.others() {
            let cause = cause.clone();
            let put = Box::new(move |mailbox: &Mailbox<T>| mailbox.abort(&cause));
            turn.post_in_order((self.rank, to), &self.met, put);
        }
    }
}

impl<T: Send + 'static> Comm<T> for End<T> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        self.check_rank(to)?;
        let from = self.rank;
        let put = Box::new(move |mailbox: &Mailbox<T>| {
            assert!(mailbox.put(from, tag, tensor), "{from} sent {tag:?} to {to} twice");
        });
        self.turn().post(to, &self.met, put);
        Ok(())
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        let _turn = self.turn();
        self.met.mailboxes[self.rank.index()].try_take(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        self.wait(deadline, |mailbox| mailbox.take(from, tag, Instant::now()))
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<T>> {
        None
    }
}

impl<T: Send + 'static> Drop for End<T> {
    /// Ranks that wait for this one learn later that nothing more comes.
    fn drop(&mut self) {
        let from = self.rank;
        let mut turn = self.scheduler.keep(self.of_all);
        for to in self.others() {
            let put = Box::new(move |mailbox: &Mailbox<T>| mailbox.end(from, None));
            turn.post_in_order((from, to), &self.met, put);
        }
    }
}

/// Ends the life of the rank that runs on this thread.
fn die() -> ! {
    resume_unwind(Box::new(Killed))
}

#[cfg(test)]
mod tests {
    use chimera_engine::comm::{Host, all_gather, conformance};
    use chimera_engine::fault::Class;

    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan { seed, most_delay: 20, ..Plan::default() }
    }

    #[test]
    fn it_conforms() {
        for seed in 0..5 {
            let ran = run::<Host, ()>(3, &plan(seed), |berth| {
                let meeting = berth.meet().expect("a meeting").expect("it goes on");
                let mut comm = meeting.comm;
                conformance::run(&mut comm, |host| host, Host::clone);
                conformance::run_abort(&mut comm, |host| host);
                Ok(())
            });
            assert!(ran.outcomes.iter().all(Result::is_ok), "{ran:?}");
        }
    }

    /// The seed determines the order of the ranks' turns, and the times of deaths.
    #[test]
    fn a_seed_gives_one_run() {
        let deaths = vec![Death { rank: Rank(1), call: 7 }, Death { rank: Rank(2), call: 9 }];
        let calls = |seed| {
            let plan = Plan { deaths: deaths.clone(), ..plan(seed) };
            let ran = run::<(), u64>(4, &plan, |berth| {
                let mut lives = 0;
                while let Some(mut meeting) = berth.meet().expect("a meeting") {
                    lives += 1;
                    let deadline = Instant::now() + Duration::from_secs(100);
                    let mut all = || -> Result<(), CommError> {
                        for _ in 0..5 {
                            all_gather(&mut meeting.comm, &[], deadline)?;
                        }
                        Ok(())
                    };
                    match all() {
                        Ok(()) => break,
                        Err(error) => meeting.comm.abort(&error.into_fault(berth.rank())),
                    }
                }
                Ok(lives)
            });
            assert!(ran.outcomes.iter().all(Result::is_ok), "{ran:?}");
            assert!(ran.n_meetings > 1);
            (ran.calls, ran.n_meetings)
        };
        assert_eq!(calls(3), calls(3));
        assert!((0..20).map(calls).any(|other| other != calls(3)));
    }

    #[test]
    fn a_wait_for_nothing_ends() {
        let ran = run::<(), ()>(2, &plan(1), |berth| {
            let mut comm = berth.meet().expect("a meeting").expect("it goes on").comm;
            let deadline = Instant::now() + Duration::from_secs(100);
            let other = Rank(1 - berth.rank().0);
            comm.recv_bytes(other, deadline).map(|_| ()).map_err(|e| e.into_fault(berth.rank()))
        });
        let is_stuck = |outcome: &Result<(), Fault>| {
            outcome.as_ref().is_err_and(|fault| fault.class == Class::Internal)
        };
        assert!(ran.outcomes.iter().any(is_stuck), "{ran:?}");
    }
}

//! The scheduler of simulated ranks: turns, messages in transit, and meetings.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use chimera_engine::comm::Mailbox;
use chimera_engine::comm::{CommError, Position};
use chimera_engine::fault::{Class, Fault};
use chimera_schedule::ids::Rank;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::{Death, Met, Plan, die, stuck};

/// Lets one rank run at a time.
pub(super) struct Scheduler<T> {
    state: Mutex<Simulator<T>>,
    /// By rank: wakes it for its turn.
    batons: Vec<Baton>,
}

/// Wakes a rank. The waking rank must not hold a lock that the other one needs next: a thread that
/// wakes only to wait for a lock costs as much as a whole turn.
#[derive(Default)]
struct Baton {
    is_here: Mutex<bool>,
    came: Condvar,
}

impl Baton {
    fn give(&self) {
        *self.is_here.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.came.notify_one();
    }

    fn take(&self) {
        let is_here = self.is_here.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.came.wait_while(is_here, |is_here| !*is_here);
        *waited.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

struct Simulator<T> {
    plan: Plan,
    random: ChaCha8Rng,
    /// The rank that has the turn; none before the start and after the end.
    running: Option<usize>,
    ranks: Vec<Life>,
    /// By rank: number of calls so far.
    calls: Vec<u64>,
    /// Number of turns so far.
    now: u64,
    /// Deliveries in transit, by due time and number.
    under_way: BTreeMap<(u64, u64), Delivery<T>>,
    n_posted: u64,
    /// Due time of the last ordered delivery, by sender and receiver.
    last_in_order: FxHashMap<(Rank, Rank), u64>,
    meetings: u64,
    /// By rank: whether it has come to the next meeting.
    is_there: Vec<bool>,
    /// By rank: whether it is alive.
    is_alive: Vec<bool>,
    /// By rank: its position; `None` once it has died or stalled, until the next meeting.
    positions: Vec<Option<Position>>,
    /// By rank: whether its wait has timed out, since nothing more happens.
    is_too_late: Vec<bool>,
    /// Ranks that come back, and when.
    away: BTreeSet<(u64, Rank)>,
    /// The last meeting.
    met: Arc<Met<T>>,
    /// Whether a rank of the last meeting wants all to stop.
    is_stopping: bool,
    /// The result of the first rank that ended.
    over: Option<Result<(), Fault>>,
    is_stuck: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// Its thread has not started.
    Unborn,
    Ready,
    /// Waits until something is delivered to it.
    Waits,
    /// Makes no calls until it is evicted.
    Stalled,
    Ended,
}

/// A delivery to a rank, into the mailboxes of the meeting in which it was sent.
struct Delivery<T> {
    to: Rank,
    met: Arc<Met<T>>,
    put: Put<T>,
}

/// The effect of a delivery on a mailbox.
pub(super) type Put<T> = Box<dyn FnOnce(&Mailbox<T>) + Send>;

pub(super) struct Turn<'s, T> {
    scheduler: &'s Scheduler<T>,
    rank: Rank,
    state: MutexGuard<'s, Simulator<T>>,
}

impl<T> Scheduler<T> {
    pub(super) fn new(n_ranks: u32, plan: Plan) -> Scheduler<T> {
        let n = n_ranks as usize;
        let state = Simulator {
            random: ChaCha8Rng::seed_from_u64(plan.seed),
            plan,
            running: None,
            ranks: vec![Life::Unborn; n],
            calls: vec![0; n],
            now: 0,
            under_way: BTreeMap::new(),
            n_posted: 0,
            last_in_order: FxHashMap::default(),
            meetings: 0,
            is_there: vec![false; n],
            is_alive: vec![true; n],
            positions: vec![Some(Position::Start); n],
            is_too_late: vec![false; n],
            away: BTreeSet::new(),
            met: Arc::new(Met { present: Vec::new(), mailboxes: Vec::new() }),
            is_stopping: false,
            over: None,
            is_stuck: false,
        };
        Scheduler { state: Mutex::new(state), batons: (0..n).map(|_| Baton::default()).collect() }
    }

    /// Waits for the first turn of a rank. The last rank to call this starts the turns.
    pub(super) fn begin(&self, rank: Rank) {
        let mut state = self.lock();
        state.ranks[rank.index()] = Life::Ready;
        if !state.ranks.contains(&Life::Unborn) {
            state.choose();
        }
        drop(self.await_turn(rank, state));
    }

    /// Begins a call of a rank. The rank may stall and die here, and others may go on before it.
    pub(super) fn enter(&self, rank: Rank) -> Turn<'_, T> {
        let mut turn = self.keep(rank);
        let calls = &mut turn.state.calls[rank.index()];
        *calls += 1;
        let now = Death { rank, call: *calls };
        if turn.state.plan.stalls.contains(&now) {
            turn = turn.stall();
            drop(turn);
            die();
        }
        if turn.state.plan.deaths.contains(&now) {
            turn.state.positions[rank.index()] = None;
            drop(turn);
            die();
        }
        if turn.state.random.random() { turn.pass(false) } else { turn }
    }

    /// The current turn of a rank.
    pub(super) fn keep(&self, rank: Rank) -> Turn<'_, T> {
        Turn { scheduler: self, rank, state: self.lock() }
    }

    /// Keeps a dead rank away until it comes back, if the plan says so.
    pub(super) fn stay_away(&self, rank: Rank) {
        let mut turn = self.keep(rank);
        let Some(turns) = turn.state.plan.away else { return };
        turn.state.is_alive[rank.index()] = false;
        let back = turn.state.now + turns;
        turn.state.away.insert((back, rank));
        turn.state.open();
        while !turn.state.is_alive[rank.index()] && !turn.state.is_over() {
            turn = turn.pass(true);
        }
    }

    /// Waits for all living ranks. Returns the number of the meeting and its ranks; `None` if a
    /// rank has ended successfully.
    pub(super) fn meet(&self, rank: Rank) -> Result<Option<(u64, Arc<Met<T>>)>, CommError> {
        let mut turn = self.enter(rank);
        let last = turn.state.meetings;
        turn.state.is_there[rank.index()] = true;
        turn.state.open();
        loop {
            match &turn.state.over {
                Some(Ok(())) => return Ok(None),
                Some(Err(cause)) => return Err(CommError::Aborted(cause.clone())),
                None if turn.state.meetings > last => break,
                None if turn.state.is_stuck => return Err(stuck()),
                None => turn = turn.pass(true),
            }
            turn.is_too_late(); // a meeting has no timeout
        }
        Ok(Some((turn.state.meetings, Arc::clone(&turn.state.met))))
    }

    pub(super) fn end(&self, rank: Rank, how: Result<(), Fault>) {
        let mut state = self.lock();
        state.ranks[rank.index()] = Life::Ended;
        state.over.get_or_insert(how);
        state.wake_all();
        state.wake(Life::Stalled);
        state.choose();
        let running = state.running;
        drop(state);
        self.tell(running);
    }

    /// The numbers of calls by rank, and the number of meetings.
    pub(super) fn counts(&self) -> (Vec<u64>, u64) {
        let state = self.lock();
        (state.calls.clone(), state.meetings)
    }

    /// Ignores poisoning: a rank that panics holds no lock while it runs code of its own.
    fn lock(&self) -> MutexGuard<'_, Simulator<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, running: Option<usize>) {
        if let Some(running) = running {
            self.batons[running].give();
        }
    }

    /// Lets the rank that has the turn go on, until the turn is this rank's.
    fn await_turn<'s>(
        &'s self,
        rank: Rank,
        mut state: MutexGuard<'s, Simulator<T>>,
    ) -> MutexGuard<'s, Simulator<T>> {
        if state.running == Some(rank.index()) {
            return state;
        }
        let running = state.running;
        drop(state);
        self.tell(running);
        loop {
            self.batons[rank.index()].take();
            state = self.lock();
            if state.running == Some(rank.index()) {
                return state;
            }
        }
    }
}

impl<'s, T> Turn<'s, T> {
    /// Returns true if no rank can go on and nothing is in transit.
    pub(super) fn is_stuck(&self) -> bool {
        self.state.is_stuck
    }

    /// Returns true, once, if this rank's wait has timed out.
    pub(super) fn is_too_late(&mut self) -> bool {
        replace(&mut self.state.is_too_late[self.rank.index()], false)
    }

    /// Records this rank's position.
    pub(super) fn report(&mut self, position: Position) {
        self.state.positions[self.rank.index()] = Some(position);
    }

    /// The position of a rank, if it answers.
    pub(super) fn position(&self, rank: Rank) -> Option<Position> {
        self.state.positions[rank.index()]
    }

    /// Lets a stalled rank die; a rank that is already dead stays as it is.
    pub(super) fn evict(&mut self, rank: Rank) {
        let life = &mut self.state.ranks[rank.index()];
        if *life == Life::Stalled {
            *life = Life::Ready;
        }
    }

    /// Makes no more calls until this rank is to die.
    fn stall(mut self) -> Turn<'s, T> {
        self.state.positions[self.rank.index()] = None;
        if self.state.is_over() { self } else { self.pass_as(Life::Stalled) }
    }

    /// Asks all ranks of this meeting to stop.
    pub(super) fn request_stop(&mut self) {
        self.state.is_stopping = true;
    }

    /// Returns true if some rank wants all to stop.
    pub(super) fn stop_requested(&self) -> bool {
        self.state.is_stopping
    }

    /// Lets others go on. Returns this rank's next turn; if it `waits`, after a delivery.
    pub(super) fn pass(self, waits: bool) -> Turn<'s, T> {
        self.pass_as(if waits { Life::Waits } else { Life::Ready })
    }

    fn pass_as(self, life: Life) -> Turn<'s, T> {
        let Turn { scheduler, rank, mut state } = self;
        state.ranks[rank.index()] = life;
        state.choose();
        let state = scheduler.await_turn(rank, state);
        Turn { scheduler, rank, state }
    }

    /// Sends a delivery to a rank, with a random delay.
    pub(super) fn post(&mut self, to: Rank, met: &Arc<Met<T>>, put: Put<T>) {
        let due = self.state.due();
        self.state.post(due, Delivery { to, met: Arc::clone(met), put });
    }

    /// Sends a delivery to a rank, which arrives after those sent before by this function.
    pub(super) fn post_in_order(
        &mut self,
        (from, to): (Rank, Rank),
        met: &Arc<Met<T>>,
        put: Put<T>,
    ) {
        let due = self.state.due();
        let last = self.state.last_in_order.entry((from, to)).or_default();
        *last = due.max(*last);
        let due = *last;
        self.state.post(due, Delivery { to, met: Arc::clone(met), put });
    }
}

impl<T> Simulator<T> {
    /// Returns true if no other meeting follows.
    fn is_over(&self) -> bool {
        self.over.is_some() || self.is_stuck
    }

    /// Draws the due time of a delivery sent now.
    fn due(&mut self) -> u64 {
        self.now + self.random.random_range(0..=self.plan.most_delay)
    }

    fn post(&mut self, due: u64, delivery: Delivery<T>) {
        self.under_way.insert((due, self.n_posted), delivery);
        self.n_posted += 1;
    }

    /// Draws the next rank to run. If none can run, time passes until the next delivery.
    fn choose(&mut self) {
        self.now += 1;
        loop {
            while let Some(first) = self.under_way.first_entry().filter(|e| e.key().0 <= self.now) {
                let Delivery { to, met, put } = first.remove();
                put(&met.mailboxes[to.index()]);
                let to = met.present[to.index()];
                if self.ranks[to.index()] == Life::Waits {
                    self.ranks[to.index()] = Life::Ready;
                }
            }
            while let Some((back, rank)) = self.away.first().copied().filter(|e| e.0 <= self.now) {
                self.away.remove(&(back, rank));
                self.come_back(rank);
            }
            let ready = (0..self.ranks.len()).filter(|rank| self.ranks[*rank] == Life::Ready);
            let ready: Vec<usize> = ready.collect();
            if !ready.is_empty() {
                self.running = Some(ready[self.random.random_range(0..ready.len())]);
                return;
            }
            let due = self.under_way.keys().next().map(|(due, _)| *due);
            let back = self.away.first().map(|(back, _)| *back);
            match due.into_iter().chain(back).min() {
                Some(due) => self.now = due,
                None if self.ranks.contains(&Life::Stalled) => self.lose_patience(),
                None if self.ranks.contains(&Life::Waits) => {
                    self.is_stuck = true;
                    self.wake_all();
                }
                None => {
                    self.running = None;
                    return;
                }
            }
        }
    }

    /// Called when everything waits for stalled ranks. Waits for messages time out. If all other
    /// ranks are waiting in a meeting, it ends the stalled ones.
    fn lose_patience(&mut self) {
        let waits = |rank: usize| self.ranks[rank] == Life::Waits;
        let is_meeting = (0..self.ranks.len()).all(|rank| !waits(rank) || self.is_there[rank]);
        if is_meeting {
            self.wake(Life::Stalled);
        } else {
            self.is_too_late = (0..self.ranks.len()).map(waits).collect();
            self.wake(Life::Waits);
        }
    }

    fn wake_all(&mut self) {
        self.wake(Life::Waits);
    }

    fn wake(&mut self, life: Life) {
        for rank in self.ranks.iter_mut().filter(|rank| **rank == life) {
            *rank = Life::Ready;
        }
    }

    /// Brings back a rank that was away. All ranks leave what they are doing, to meet with it.
    fn come_back(&mut self, rank: Rank) {
        self.is_alive[rank.index()] = true;
        if self.is_over() {
            return;
        }
        let cause = Fault::new(Class::PeerLost, rank, "it has come back: all meet again");
        let cause = Fault { peer: Some(rank), ..cause };
        self.met.mailboxes.iter().for_each(|mailbox| mailbox.abort(&cause));
        self.wake_all();
    }

    /// Begins the next meeting if all living ranks are there.
    fn open(&mut self) {
        if self.is_there.iter().zip(&self.is_alive).all(|(is_there, is_alive)| is_there == is_alive)
        {
            self.meetings += 1;
            let living = (0..).map(Rank).zip(&self.is_alive).filter(|(_, is_alive)| **is_alive);
            let present: Vec<Rank> = living.map(|(rank, _)| rank).collect();
            let mailboxes = present.iter().map(|_| Mailbox::default()).collect();
            self.met = Arc::new(Met { present, mailboxes });
            self.is_there.fill(false);
            self.is_stopping = false;
            self.positions.fill(Some(Position::Start));
            self.wake_all();
        }
    }
}

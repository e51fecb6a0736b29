//! Waits in short turns, between which pending sums proceed and requests to stop are noticed.

use std::task::Poll;
use std::time::{Duration, Instant};

use chimera_schedule::analyze::Need;
use chimera_schedule::program::Instr;

use crate::comm::{Comm, CommError, Endpoint, Wrap};
use crate::device::Device;
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::{Class, Fault};

/// Length of a turn while sums are in progress.
const TURN: Duration = Duration::from_millis(5);
/// Length of a turn while activations are moved.
const MOVES: Duration = Duration::from_micros(100);
/// Length of a turn while a request to stop is possible.
const LOOK: Duration = Duration::from_millis(50);

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Calls `attempt` with a deadline, again and again, until this rank has waited too long.
    /// `waited` finds the time in an error that is a timeout. Returns pending if the step is to be
    /// discarded, and, in programs with moves, after each turn, so that the other lane makes
    /// progress.
    pub(crate) fn wait<T, E>(
        &mut self,
        waited: fn(&mut E) -> Option<&mut Duration>,
        mut attempt: impl FnMut(&mut Self, Instant) -> Result<T, E>,
    ) -> Result<Poll<Result<T, E>>, Fault> {
        let beside_moves = self.job.program.rules().has_moves();
        let (began, deadline) = (Instant::now(), self.deadline());
        let patience = deadline.saturating_duration_since(began);
        let mut so_far = self.steps.waited;
        loop {
            let left = patience.saturating_sub(so_far.total);
            let turn = if beside_moves { MOVES } else { self.turn() }.min(left);
            let start = Instant::now();
            let mut tried = attempt(self, start + turn);
            match tried.as_mut().err().and_then(waited) {
                Some(_) if turn < left => {}
                Some(waited) => {
                    *waited = self.steps.waited.total + began.elapsed();
                    return Ok(Poll::Ready(tried));
                }
                None => return Ok(Poll::Ready(tried)),
            }
            so_far.add(turn, start, Instant::now());
            self.poll_sums()?;
            if self.is_to_discard() || beside_moves {
                self.steps.waited = so_far;
                return Ok(Poll::Pending);
            }
        }
    }

    /// Pauses before both lanes are tried again, blocked at `instr` and at `next_move`.
    ///
    /// # Errors
    /// If both have been blocked for too long.
    pub(crate) fn look_again(
        &mut self,
        instr: Instr,
        next_move: Option<Instr>,
    ) -> Result<(), Fault> {
        let has_waited = match instr {
            Instr::Recv(token, _) => token.edge().is_some(),
            _ => instr.awaited().is_some(),
        };
        if has_waited || !self.job.program.rules().has_moves() {
            return Ok(());
        }
        let start = Instant::now();
        self.comm.flush().or_else(|error| self.on_wire("moves", Err(error)))?;
        std::thread::sleep(MOVES);
        self.steps.waited.add(MOVES, start, Instant::now());
        self.poll_sums()?;
        let waited = self.steps.waited.total;
        if self.deadline() > Instant::now() + waited {
            return Ok(());
        }
        if let Some(Instr::Recv(token, channel)) = next_move {
            let from = self.rank_of(self.job.program.channels()[channel.index()].from, self.group);
            let late = CommError::Timeout { from, what: token.to_string(), waited };
            return self.on_wait(token, Need::Token(token), Err(late));
        }
        let message = format!("waited {:.1} s for a move of activations", waited.as_secs_f64());
        Err(self.at(Fault::new(Class::Timeout, self.comm.rank(), message), "moves"))
    }

    /// Length of the next turn of a wait.
    fn turn(&mut self) -> Duration {
        // The first step has a timeout of its own, which some transports recognize only by the
        // deadline. If ranks wait for weights within a program, they may wait for sums of ranks
        // that wait for their messages. If all messages are in one order, they may wait for
        // messages ordered after those of a sum.
        let must_sum =
            self.job.program.window().update().is_borderless() || self.comm.ordered().is_some();
        if self.reductions.is_summing() && (must_sum || !self.sync.is_first()) {
            TURN
        } else if self.can_discard() {
            LOOK
        } else {
            Duration::MAX
        }
    }

    pub(crate) fn poll_sums(&mut self) -> Result<(), Fault> {
        let polled = self.reductions.poll(&self.device, &mut self.comm);
        polled.or_else(|(bucket, error)| self.on_sum(bucket, Err(error)))
    }
}

//! The checker and the simulator in one run: what both know of a token travels together.

use std::task::Poll;

use super::check::{Checker, interpret};
use super::refusal::{Reason, Refusal};
use super::simulate::{Ready, Simulation};
use super::timeline::Event;
use crate::costs::Costs;
use crate::effects::{Effects, Token};
use crate::ids::{BucketId, ChannelId, WorkerId};
use crate::interp::{Machine, Values};
use crate::op::Cell;
use crate::program::Program;

/// Proves the compute and messages of a program that has no synchronisation yet, and simulates it by the way: `record`
/// takes each event.
pub(crate) fn prove_compute(
    program: &Program,
    costs: &impl Costs,
    record: impl FnMut(Event),
) -> Result<(), Refusal> {
    let clock = Simulation::new(program, costs, record);
    let both = Timed { checker: Checker::new(program, None, None), clock };
    interpret(program, both, |both| &mut both.checker.bound).map(drop)
}

/// Simulates what the checker lets run. It is for programs that have no synchronisation yet: there a worker waits for
/// messages alone, and the checker says when one is there.
struct Timed<'p, C, F> {
    checker: Checker<'p>,
    clock: Simulation<'p, C, F>,
}

/// What a step that the simulator cannot refuse gives.
fn certain<T>(result: Result<T, std::convert::Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

impl<C: Costs, F: FnMut(Event)> Machine for Timed<'_, C, F> {
    type Value = (u32, Ready);
    type Error = Reason;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Values<(u32, Ready)>,
    ) -> Result<Values<(u32, Ready)>, Reason> {
        let (versions, times): (Values<u32>, Values<Ready>) = eaten.into_iter().unzip();
        let versions = self.checker.run(worker, cell, effects, versions)?;
        let times = certain(self.clock.run(worker, cell, effects, times));
        Ok(versions.into_iter().zip(times).collect())
    }

    fn has_room(&mut self, channel: ChannelId) -> bool {
        self.checker.has_room(channel)
    }

    fn send(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
        (version, time): (u32, Ready),
    ) -> Result<(), Reason> {
        self.checker.send(worker, token, channel, version)?;
        certain(self.clock.send(worker, token, channel, time));
        Ok(())
    }

    fn recv(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<(u32, Ready)>, Reason> {
        let Poll::Ready(version) = self.checker.recv(worker, token, channel)? else {
            return Ok(Poll::Pending);
        };
        Ok(certain(self.clock.recv(worker, token, channel)).map(|time| (version, time)))
    }

    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Reason> {
        self.checker.reduce(worker, bucket)?;
        certain(self.clock.reduce(worker, bucket));
        Ok(())
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Reason> {
        let arrived = certain(self.clock.await_sum(worker, bucket));
        if arrived.is_pending() { Ok(arrived) } else { self.checker.await_sum(worker, bucket) }
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Reason> {
        let agreed = certain(self.clock.agree(worker));
        if agreed.is_pending() { Ok(agreed) } else { self.checker.agree(worker) }
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Reason> {
        self.checker.step(worker, bucket)?;
        certain(self.clock.step(worker, bucket));
        Ok(())
    }
}

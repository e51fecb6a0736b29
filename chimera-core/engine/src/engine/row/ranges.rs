//! Named ranges around the work of a device, so that a profiler shows each launch under its op.

use std::fmt::Display;
use std::task::Poll;

use chimera_schedule::effects::{Effects, Token};
use chimera_schedule::few::Few;
use chimera_schedule::ids::{BucketId, ChannelId, WorkerId};
use chimera_schedule::interp::Machine;
use chimera_schedule::op::{Cell, Lane};
use chimera_schedule::program::ShardOp;

use crate::comm::Comm;
use crate::device::Device;
use crate::engine::row::value::Value;
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::Fault;

/// The engine, with a named range around each instruction that computes.
pub(crate) struct InRanges<'s, 'j, S: StageOn<D>, D: Device, C: Comm<D::Tensor>>(
    pub(crate) &'s mut State<'j, S, D, C>,
);

impl<'j, S: StageOn<D>, D: Device, C: Comm<D::Tensor>> InRanges<'_, 'j, S, D, C> {
    fn within<R>(
        &mut self,
        name: &dyn Display,
        act: impl FnOnce(&mut State<'j, S, D, C>) -> R,
    ) -> R {
        self.0.timing.begin_range(name);
        let result = act(self.0);
        self.0.timing.end_range();
        result
    }
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Machine for InRanges<'_, '_, S, D, C> {
    type Value = Value<S>;
    type Error = Fault;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Few<Value<S>>,
    ) -> Result<Few<Value<S>>, Fault> {
        self.within(cell, |state| state.run(worker, cell, effects, eaten))
    }

    fn has_room(&mut self, channel: ChannelId) -> bool {
        self.0.has_room(channel)
    }

    fn send(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
        value: Value<S>,
    ) -> Result<(), Fault> {
        self.0.send(worker, token, channel, value)
    }

    fn recv(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<Value<S>>, Fault> {
        self.0.recv(worker, token, channel)
    }

    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Fault> {
        self.within(&format_args!("reduce {bucket}"), |state| state.reduce(worker, bucket))
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Fault> {
        self.within(&format_args!("sum of {bucket}"), |state| state.await_sum(worker, bucket))
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Fault> {
        self.within(&"step sync", |state| state.agree(worker))
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Fault> {
        self.within(&format_args!("update {bucket}"), |state| state.step(worker, bucket))
    }

    fn shard(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Fault> {
        self.within(op, |state| state.shard(worker, op))
    }

    fn give(&mut self, worker: WorkerId, lane: Lane) -> Value<S> {
        self.0.give(worker, lane)
    }

    fn take(&mut self, worker: WorkerId, lane: Lane, room: Value<S>) {
        self.0.take(worker, lane, room);
    }
}

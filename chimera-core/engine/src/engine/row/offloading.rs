//! Moves of saved activations: to the host and back, or to another rank that keeps them.

use std::collections::VecDeque;
use std::task::Poll;

use chimera_schedule::analyze::Need;
use chimera_schedule::effects::{Token, TokenKind, UnitAt};
use chimera_schedule::ids::Rank;
use chimera_schedule::op::{Kind, Op};

use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::{Device, wait_ready};
use crate::engine::row::value::Value;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::stages::movable;
use crate::fault::{Class, Fault};
use crate::stage::Left;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Runs a move on the values it eats. Values that move to another rank are sent and received by
    /// the messages before and after it.
    pub(crate) fn run_move(
        &mut self,
        op: &Op,
        eaten: VecDeque<Value<S>>,
    ) -> Result<Vec<Value<S>>, Fault> {
        let units = op.span.units().zip(eaten);
        let moved = units.map(|(unit, value)| {
            let at = (op.pipe, op.stage, unit);
            match (op.kind, value) {
                (Kind::Offload, Value::Saved(saved, lefts)) => {
                    self.take_apart(op, at, saved, lefts)
                }
                (Kind::Reload, value) => self.put_together(op, at, value),
                (_, kept) => Ok(kept),
            }
        });
        moved.collect()
    }

    fn take_apart(
        &mut self,
        op: &Op,
        at: UnitAt,
        saved: S::Saved,
        lefts: Vec<Left<S::Tensor>>,
    ) -> Result<Value<S>, Fault> {
        let taken = movable(&self.stages.held(op.stage).stage).take_apart(saved);
        let (tensors, reassemble) = self.on_device(op, taken)?;
        self.steps.rests.insert(at, (reassemble, lefts));
        let (pipe, stage, unit) = at;
        if self.job.program.rules().keeper(pipe, stage, unit).is_some() {
            return Ok(Value::Tensors(tensors));
        }
        let reload = self.device.offload(tensors);
        let device = self.device.clone();
        let reload = self.on_device(op, reload)?;
        Ok(Value::Offloaded(Box::new(move || reload(&device))))
    }

    fn put_together(&mut self, op: &Op, at: UnitAt, value: Value<S>) -> Result<Value<S>, Fault> {
        let tensors = match value {
            Value::Tensors(tensors) => Ok(tensors),
            Value::Offloaded(reload) => reload(),
            other => panic!("moved activations were expected, not {}", other.name()),
        };
        let tensors = self.on_device(op, tensors)?;
        let Some((reassemble, lefts)) = self.steps.rests.remove(&at) else {
            panic!("{op} reloads what was not offloaded");
        };
        let saved = self.on_device(op, reassemble(tensors))?;
        Ok(Value::Saved(saved, lefts))
    }

    /// Sends moved activations: their number of tensors, followed by the tensors.
    pub(crate) fn send_moved(
        &mut self,
        to: Rank,
        token: Token,
        tensors: Vec<S::Tensor>,
    ) -> Result<(), Fault> {
        let count = self.device.upload(&[1], &[tensors.len() as f32]);
        let count = self.on_device(token.to_string(), count)?;
        for (index, tensor) in (0..).zip([count].into_iter().chain(tensors)) {
            let sent = self.comm.send(to, self.tag_of_moved(token, index), tensor);
            self.on_wire(token, sent)?;
        }
        Ok(())
    }

    /// Receives moved activations, if they are on their way.
    pub(crate) fn recv_moved(
        &mut self,
        from: Rank,
        token: Token,
    ) -> Result<Poll<Vec<S::Tensor>>, Fault> {
        let count = self.comm.try_recv(from, self.tag_of_moved(token, 0));
        let Some(count) = self.on_wire(token, count)? else { return Ok(Poll::Pending) };
        let count = wait_ready(&self.device, &count).and_then(|()| self.device.download(&count));
        let count = self.on_device(token.to_string(), count)?;
        let Some(n) = count.first().copied().filter(|n| *n >= 0.0 && *n < 1e6) else {
            let what = format!("{from} sent {token} as no number of tensors");
            let fault = Fault::new(Class::Mismatch, self.comm.rank(), what);
            return Err(Fault { peer: Some(from), ..fault });
        };
        let mut tensors = Vec::new();
        for index in 1..=n as u32 {
            let (tag, deadline) = (self.tag_of_moved(token, index), self.deadline());
            let received = self.comm.recv(from, tag, deadline);
            tensors.push(self.on_wait(token, Need::Token(token), received)?);
        }
        Ok(Poll::Ready(tensors))
    }

    fn tag_of_moved(&self, token: Token, tensor: u32) -> Tag {
        let Token { kind, pipe, stage, span, .. } = token;
        let returns = kind == TokenKind::Back;
        let payload = Payload::Moved { returns, pipe, stage, unit: span.start, tensor };
        Tag::new(self.steps.first, payload)
    }
}

//! The machine whose tokens carry tensors: one rank's stages, weights and wires.

use std::collections::VecDeque;
use std::task::Poll;
use std::time::Instant;

use super::agreement::{Agreed, Record};
use super::sums::Reduction;
use super::{Job, Patience};
use crate::analyze::timeline::{Event, Work};
use crate::comm::{Comm, CommError, Tag, What};
use crate::effects::{Token, TokenKind};
use crate::fault::{Class, Fault};
use crate::ids::{BucketId, ChannelId, Rank, StageId, WorkerId};
use crate::interp::{Machine, Values};
use crate::kernels::{DeviceError, Kernels};
use crate::op::{Cell, Kind, Op};
use crate::stage::{Micro, Output, Stage};

/// What a live token carries.
pub(super) enum Value<S: Stage> {
    /// An activation, a gradient, or a kept input.
    Tensor(S::Tensor),
    /// The kept input of the first stage: its ids come with the micro-batch.
    Nothing,
    /// Residuals.
    Saved(S::Saved),
    /// Deferred weight work.
    Deferred(S::Deferred),
}

/// A stage with its weights, gradients and moments, in the order of its parameters.
pub(super) struct Held<S: Stage> {
    pub(super) stage: S,
    pub(super) weights: Vec<S::Tensor>,
    pub(super) grads: Vec<S::Tensor>,
    pub(super) moments: Vec<[S::Tensor; 2]>,
}

/// Where a rank keeps one tensor of a bucket: stage and index of the parameter. A tied tensor may have
/// two places on one rank.
pub(super) type Places = Vec<(StageId, usize)>;

/// One rank's world.
pub(super) struct World<'j, S: Stage, K, C> {
    pub(super) job: Job<'j>,
    pub(super) kernels: K,
    pub(super) comm: C,
    pub(super) group: usize,
    /// By stage; `None` where another worker holds it.
    pub(super) held: Vec<Option<Held<S>>>,
    /// By bucket and tensor.
    pub(super) layout: Vec<Vec<Places>>,
    /// By channel: the tokens of the coming step that this worker receives, in order.
    pub(super) expected: Vec<VecDeque<Token>>,
    pub(super) step: u64,
    pub(super) under_way: Vec<(BucketId, Reduction<S::Tensor>, f64)>,
    pub(super) losses: Vec<(Op, S::Tensor)>,
    pub(super) residuals: Residuals,
    pub(super) events: Vec<Event>,
    pub(super) since_agreed: Span,
    pub(super) agreed: Option<Agreed>,
}

/// Bytes of residuals alive.
#[derive(Default)]
pub(super) struct Residuals {
    pub(super) held: u64,
    pub(super) peak: u64,
}

/// Time since the last agreement.
pub(super) struct Span {
    pub(super) start: Instant,
    pub(super) busy_s: f64,
}

pub(super) fn device_fault(rank: Rank, error: DeviceError) -> Fault {
    let class = match error {
        DeviceError::OutOfMemory { .. } => Class::OutOfMemory,
        DeviceError::Failed { .. } => Class::Internal,
    };
    Fault::new(class, rank, error.to_string())
}

pub(super) fn comm_fault(rank: Rank, error: CommError) -> Fault {
    let message = error.to_string();
    match error {
        CommError::Aborted(cause) => cause,
        CommError::Timeout { from, .. } => Fault {
            peer: Some(from),
            ..Fault::new(Class::Timeout, rank, message)
        },
        CommError::Lost { from, .. } => Fault {
            peer: Some(from),
            ..Fault::new(Class::PeerLost, rank, message)
        },
        CommError::Failed(_) => Fault::new(Class::Internal, rank, message),
    }
}

impl<S, K, C> World<'_, S, K, C>
where
    S: Stage<Tensor = K::Tensor>,
    K: Kernels,
    C: Comm<K::Tensor>,
{
    /// A worker of this rank's own group.
    pub(super) fn rank_of(&self, worker: WorkerId, group: usize) -> Rank {
        Rank((group * self.job.program.placement().n_workers()) as u32 + u32::from(worker.0))
    }

    fn deadline(&self) -> Instant {
        let Patience { first_step, later } = self.job.patience;
        Instant::now()
            + if self.agreed.is_none() {
                first_step
            } else {
                later
            }
    }

    /// Announces the first messages of every channel, as many as the channel must be able to hold.
    pub(super) fn post_ahead(&mut self) -> Result<(), Fault> {
        let n_ahead = self.job.program.channel_bound() as usize;
        for (c, tokens) in self.expected.iter().enumerate() {
            let from = self.job.program.channels()[c].from;
            let from = self.rank_of(from, self.group);
            for &token in tokens.iter().take(n_ahead) {
                let tag = Tag {
                    step: self.step,
                    what: What::Token(token),
                };
                self.comm
                    .post(from, tag)
                    .map_err(|e| comm_fault(self.comm.rank(), e))?;
            }
        }
        Ok(())
    }

    fn now_s(&self) -> f64 {
        self.job.epoch.elapsed().as_secs_f64()
    }

    fn at(&self, fault: Fault, op: impl ToString) -> Fault {
        Fault {
            step: fault.step.or(Some(self.step)),
            op: fault.op.or(Some(op.to_string())),
            ..fault
        }
    }

    fn on_device<T>(&self, op: impl ToString, result: Result<T, DeviceError>) -> Result<T, Fault> {
        result.map_err(|e| self.at(device_fault(self.comm.rank(), e), op))
    }

    fn on_wire<T>(&self, op: impl ToString, result: Result<T, CommError>) -> Result<T, Fault> {
        result.map_err(|e| match e {
            CommError::Aborted(cause) => cause,
            e => self.at(comm_fault(self.comm.rank(), e), op),
        })
    }

    fn record(&mut self, worker: WorkerId, work: Work, start: f64) {
        let end = self.now_s();
        if !matches!(work, Work::Reduce(_)) {
            self.since_agreed.busy_s += end - start;
        }
        self.events.push(Event {
            worker,
            work,
            start,
            end,
            after: None,
        });
    }

    /// Runs one op on the values it eats; returns those it makes, in the order of its effects.
    fn run_op(
        &mut self,
        op: &Op,
        eaten: &mut dyn Iterator<Item = Value<S>>,
    ) -> Result<Vec<Value<S>>, Fault> {
        let effects = self.job.program.rules().effects(op);
        let n_eaten = effects.eats.len();
        let mut eaten: VecDeque<Value<S>> = eaten.take(n_eaten).collect();
        let units: Vec<Op> = op
            .span
            .units()
            .map(|u| Op::new(op.kind, op.pipe, op.stage, u))
            .collect();
        let makes_saved = effects.makes.iter().any(|t| t.kind == TokenKind::Saved);
        let mut made = Vec::with_capacity(effects.makes.len());
        match op.kind {
            Kind::Forward => {
                let x = eaten.pop_front().map(Value::tensor);
                let kept = if makes_saved { None } else { x.clone() };
                let (output, saved) = self.forward(op, x)?;
                match output {
                    Output::Activation(y) => made.push(Value::Tensor(y)),
                    Output::Loss { loss, grad } => {
                        self.losses.push((*op, loss));
                        made.extend(self.split(op, grad)?);
                    }
                }
                match kept {
                    _ if makes_saved => made.extend(self.split_saved(op, saved)?),
                    Some(x) => made.extend(self.split(op, x)?),
                    None => made.extend(units.iter().map(|_| Value::Nothing)),
                }
            }
            Kind::Recompute => {
                for (unit, kept) in units.iter().zip(eaten) {
                    let x = match kept {
                        Value::Nothing => None,
                        kept => Some(kept.tensor()),
                    };
                    made.extend(
                        self.forward(unit, x)
                            .and_then(|(_, saved)| self.split_saved(unit, saved))?,
                    );
                }
            }
            Kind::Backward | Kind::BackwardInput => {
                let grads = eaten.split_off(units.len());
                let (mut inputs, mut deferred) = (Vec::new(), Vec::new());
                for (unit, (saved, dy)) in units.iter().zip(eaten.into_iter().zip(grads)) {
                    let (dx, rest) = self.backward_input(unit, saved.saved(), dy.tensor())?;
                    inputs.extend(dx.map(Value::Tensor));
                    match op.kind {
                        Kind::Backward => self.backward_weight(unit, rest)?,
                        _ => deferred.push(Value::Deferred(rest)),
                    }
                }
                made.extend(inputs.into_iter().chain(deferred));
            }
            Kind::BackwardWeight => {
                for (unit, deferred) in units.iter().zip(eaten) {
                    self.backward_weight(unit, deferred.deferred())?;
                }
            }
        }
        Ok(made)
    }

    fn forward(
        &mut self,
        op: &Op,
        x: Option<S::Tensor>,
    ) -> Result<(Output<S::Tensor>, S::Saved), Fault> {
        let batch = self.batch(op);
        let held = self.held(op.stage);
        let result = held.stage.forward(&held.weights, &batch.micro(self), x);
        self.on_device(op, result)
    }

    fn backward_input(
        &mut self,
        op: &Op,
        saved: S::Saved,
        dy: S::Tensor,
    ) -> Result<(Option<S::Tensor>, S::Deferred), Fault> {
        self.residuals.held -= self.held(op.stage).stage.saved_bytes(&saved);
        let batch = self.batch(op);
        let held = self.held(op.stage);
        let result = held
            .stage
            .backward_input(&held.weights, &batch.micro(self), saved, dy);
        self.on_device(op, result)
    }

    fn backward_weight(&mut self, op: &Op, deferred: S::Deferred) -> Result<(), Fault> {
        let batch = self.batch(op);
        let mut grads = std::mem::take(&mut self.held_mut(op.stage).grads);
        let held = self.held(op.stage);
        let result = held
            .stage
            .backward_weight(&batch.micro(self), deferred, &mut grads);
        self.held_mut(op.stage).grads = grads;
        self.on_device(op, result)
    }

    fn split_saved(&mut self, op: &Op, saved: S::Saved) -> Result<Vec<Value<S>>, Fault> {
        let parts = usize::from(op.span.len);
        let stage = &self.held(op.stage).stage;
        let split = if parts == 1 {
            Ok(vec![saved])
        } else {
            stage.split_saved(saved, parts)
        };
        let split = self.on_device(op, split)?;
        let bytes: u64 = split
            .iter()
            .map(|s| self.held(op.stage).stage.saved_bytes(s))
            .sum();
        self.residuals.held += bytes;
        self.residuals.peak = self.residuals.peak.max(self.residuals.held);
        Ok(split.into_iter().map(Value::Saved).collect())
    }

    fn split(&self, op: &Op, tensor: S::Tensor) -> Result<Vec<Value<S>>, Fault> {
        let parts = usize::from(op.span.len);
        let stage = &self.held(op.stage).stage;
        let split = if parts == 1 {
            Ok(vec![tensor])
        } else {
            stage.split_tensor(tensor, parts)
        };
        Ok(self
            .on_device(op, split)?
            .into_iter()
            .map(Value::Tensor)
            .collect())
    }

    /// The samples of an op: number `(group*N + m)*B + i` of the global batch for sample `i` of
    /// micro-batch `m`.
    fn batch(&self, op: &Op) -> Batch {
        let program = self.job.program;
        let unit_samples = self.job.micro_batch_size as u64 / u64::from(program.units_per_micro());
        let n_units = u64::from(program.n_micro_batches() * program.units_per_micro());
        let first = (self.group as u64 * n_units + u64::from(op.span.start)) * unit_samples;
        let (mut input, mut target) = (Vec::new(), Vec::new());
        let is_end = op.stage.0 == 0 || op.stage.index() + 1 == program.placement().n_stages();
        if is_end {
            for sample in first..first + unit_samples * u64::from(op.span.len) {
                self.job
                    .data
                    .sample(self.step, sample, &mut input, &mut target);
            }
        }
        Batch {
            sample: first,
            input,
            target,
        }
    }

    /// The proof places every op where its stage is, so a stage that is not here is a bug.
    pub(super) fn held(&self, stage: StageId) -> &Held<S> {
        self.held[stage.index()]
            .as_ref()
            .unwrap_or_else(|| panic!("{stage} is not on this worker"))
    }

    pub(super) fn held_mut(&mut self, stage: StageId) -> &mut Held<S> {
        self.held[stage.index()]
            .as_mut()
            .unwrap_or_else(|| panic!("{stage} is not on this worker"))
    }

    fn poll_sums(&mut self) -> Result<(), Fault> {
        for (bucket, sum, _) in &mut self.under_way {
            let polled = sum.poll(&self.kernels, &mut self.comm);
            let rank = self.comm.rank();
            polled.map_err(|e| Fault {
                step: Some(self.step),
                op: Some(format!("reduction of {bucket}")),
                ..e.into_fault(rank)
            })?;
        }
        Ok(())
    }

    /// This rank's part of the agreement.
    fn own_record(&self) -> Result<Record, Fault> {
        let mut record = Record {
            busy_s: self.since_agreed.busy_s,
            span_s: self.since_agreed.start.elapsed().as_secs_f64(),
            bytes: self.bytes() as f64,
            stop: self.job.stop.load(std::sync::atomic::Ordering::Relaxed),
            ..Record::default()
        };
        for (op, loss) in &self.losses {
            let loss = self.scalar(loss)?;
            if !loss.is_finite() && record.culprit.is_empty() {
                record.culprit = format!("the loss of {op}");
            }
            record.loss += loss;
        }
        for (bucket, tensors) in self.layout.iter().enumerate() {
            let lead = self.job.program.buckets()[bucket].members.first();
            if self.group != 0 || lead.map(|w| self.rank_of(*w, 0)) != Some(self.comm.rank()) {
                continue; // another replica counts these
            }
            for &(stage, index) in tensors.iter().filter_map(|places| places.first()) {
                let held = self.held(stage);
                let norm = self.kernels.squared_norm(&held.grads[index]);
                let norm = self.scalar(&self.on_device("gradient norm", norm)?)?;
                if !norm.is_finite() && record.culprit.is_empty() {
                    let name = &held.stage.params()[index].name;
                    record.culprit = format!("the gradient of {name} ({stage})");
                }
                record.squared_norm += norm;
            }
        }
        Ok(record)
    }

    fn scalar(&self, tensor: &S::Tensor) -> Result<f64, Fault> {
        let values = self.on_device("download", self.kernels.download(tensor))?;
        Ok(values.iter().map(|v| f64::from(*v)).sum())
    }

    /// Bytes of weights, gradients and moments, and of residuals at their peak.
    fn bytes(&self) -> u64 {
        let elements: usize = (self.held.iter().flatten())
            .flat_map(|held| held.stage.params())
            .map(|param| param.n_elements())
            .sum();
        elements as u64 * 4 * 4 + self.residuals.peak
    }
}

impl<S, K, C> Machine for World<'_, S, K, C>
where
    S: Stage<Tensor = K::Tensor>,
    K: Kernels,
    C: Comm<K::Tensor>,
{
    type Value = Value<S>;
    type Error = Fault;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        eaten: Values<Value<S>>,
        _: &[Token],
    ) -> Result<Values<Value<S>>, Fault> {
        let start = self.now_s();
        let mut eaten = eaten.into_iter();
        let mut made = Values::new();
        for op in cell.ops() {
            made.extend(self.run_op(&op, &mut eaten)?);
        }
        self.record(worker, Work::Cell(*cell), start);
        self.poll_sums()?;
        Ok(made)
    }

    /// The transport holds at least as many messages as the proof asks for.
    fn has_room(&mut self, _: ChannelId) -> bool {
        true
    }

    fn send(
        &mut self,
        _: WorkerId,
        token: Token,
        channel: ChannelId,
        value: Value<S>,
    ) -> Result<(), Fault> {
        let to = self.rank_of(self.job.program.channels()[channel.index()].to, self.group);
        let tag = Tag {
            step: self.step,
            what: What::Token(token),
        };
        let sent = self.comm.send(to, tag, value.tensor());
        self.on_wire(token, sent)
    }

    fn recv(
        &mut self,
        _: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<Value<S>>, Fault> {
        let from = self.rank_of(
            self.job.program.channels()[channel.index()].from,
            self.group,
        );
        let tag = |token| Tag {
            step: self.step,
            what: What::Token(token),
        };
        let (now, ahead) = (tag(token), self.job.program.channel_bound() as usize);
        let next = self.expected[channel.index()].get(ahead).copied().map(tag);
        let taken = self.comm.take(from, now, self.deadline());
        let taken = self.on_wire(token, taken)?;
        self.expected[channel.index()].pop_front();
        if let Some(next) = next {
            let posted = self.comm.post(from, next);
            self.on_wire(token, posted)?;
        }
        Ok(Poll::Ready(Value::Tensor(taken)))
    }

    fn reduce(&mut self, _: WorkerId, bucket: BucketId) -> Result<(), Fault> {
        let mut parts = Vec::with_capacity(self.layout[bucket.index()].len());
        for places in self.layout[bucket.index()].clone() {
            let mut part = None;
            for (stage, index) in places {
                let empty = self.kernels.zeros(&[0]);
                let empty = self.on_device("reduction", empty)?;
                let grad = std::mem::replace(&mut self.held_mut(stage).grads[index], empty);
                match &mut part {
                    None => part = Some(grad),
                    Some(sum) => {
                        let added = self.kernels.accumulate(sum, &grad);
                        self.on_device("reduction", added)?;
                    }
                }
            }
            parts.extend(part);
        }
        let members = &self.job.program.buckets()[bucket.index()].members;
        let groups = 0..self.job.width;
        let members = groups.flat_map(|g| members.iter().map(move |w| (*w, g)));
        let members = members.map(|(w, g)| self.rank_of(w, g)).collect();
        let start = self.now_s();
        let sum = Reduction::start(
            &self.kernels,
            &mut self.comm,
            self.step,
            bucket,
            members,
            parts,
        );
        let sum = self.on_wire(format!("reduction of {bucket}"), sum)?;
        self.under_way.push((bucket, sum, start));
        Ok(())
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Fault> {
        let Some(at) = self.under_way.iter().position(|(b, ..)| *b == bucket) else {
            panic!("{bucket} is awaited before its reduction");
        };
        let (_, sum, start) = self.under_way.remove(at);
        let deadline = self.deadline();
        let sums = sum
            .finish(&self.kernels, &mut self.comm, deadline)
            .map_err(|e| {
                let fault = e.into_fault(self.comm.rank());
                self.at(fault, format!("reduction of {bucket}"))
            })?;
        for (places, sum) in self.layout[bucket.index()].clone().into_iter().zip(sums) {
            for (stage, index) in places {
                self.held_mut(stage).grads[index] = sum.clone();
            }
        }
        self.record(worker, Work::Reduce(bucket), start);
        Ok(Poll::Ready(()))
    }

    fn agree(&mut self, _: WorkerId) -> Result<Poll<()>, Fault> {
        let record = self.own_record()?;
        let deadline = self.deadline();
        let records = self.comm.exchange(&record.to_bytes(), deadline);
        let records = self.on_wire("agreement", records)?;
        let rank = self.comm.rank();
        let agreed = Agreed::of(&records).map_err(|from| Fault {
            peer: Some(from),
            ..Fault::new(
                Class::Mismatch,
                rank,
                format!("{from} sent a record that cannot be read"),
            )
        })?;
        self.since_agreed = Span {
            start: Instant::now(),
            busy_s: 0.0,
        };
        if let Some((at, culprit)) = agreed
            .culprit
            .clone()
            .filter(|_| self.job.training.check_finite)
        {
            let message = format!(
                "{culprit} is not finite; the weights are those of the last sound step. \
                 Lower --lr, or clip with --clip"
            );
            return Err(Fault {
                step: Some(self.step),
                ..Fault::new(Class::NonFinite, at, message)
            });
        }
        self.agreed = Some(agreed);
        Ok(Poll::Ready(()))
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Fault> {
        let start = self.now_s();
        let norm = self.agreed.as_ref().map_or(0.0, |a| a.grad_norm);
        let training = self.job.training;
        let grad_scale = if training.clip.is_some() {
            training.grad_scale(norm)
        } else {
            1.0
        };
        for places in self.layout[bucket.index()].clone() {
            for (stage, index) in places {
                let step = self.step;
                let kernels = self.kernels.clone();
                let held = self.held_mut(stage);
                let decay = held.stage.params()[index].decay;
                let [m, v] = &mut held.moments[index];
                let by = training.adamw(step, decay, grad_scale);
                let updated =
                    kernels.adamw(&mut held.weights[index], &held.grads[index], m, v, &by);
                self.on_device(format!("optimizer step of {bucket}"), updated)?;
            }
        }
        self.record(worker, Work::Step(bucket), start);
        Ok(())
    }
}

/// The ids of an op's samples.
struct Batch {
    sample: u64,
    input: Vec<u32>,
    target: Vec<u32>,
}

impl Batch {
    fn micro<S: Stage, K, C>(&self, world: &World<'_, S, K, C>) -> Micro<'_> {
        let job = &world.job;
        let n_samples = job.width as u64
            * u64::from(job.program.n_micro_batches())
            * job.micro_batch_size as u64;
        Micro {
            step: world.step,
            sample: self.sample,
            input: &self.input,
            target: &self.target,
            loss_scale: 1.0 / (n_samples as f64 * job.data.n_targets() as f64),
        }
    }
}

/// Tokens of a kind always carry the same kind of value, so another one is a bug.
impl<S: Stage> Value<S> {
    fn tensor(self) -> S::Tensor {
        match self {
            Value::Tensor(tensor) => tensor,
            other => panic!("a tensor was expected, not {}", other.name()),
        }
    }

    fn saved(self) -> S::Saved {
        match self {
            Value::Saved(saved) => saved,
            other => panic!("residuals were expected, not {}", other.name()),
        }
    }

    fn deferred(self) -> S::Deferred {
        match self {
            Value::Deferred(deferred) => deferred,
            other => panic!("deferred weight work was expected, not {}", other.name()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Value::Tensor(_) => "a tensor",
            Value::Nothing => "nothing",
            Value::Saved(_) => "residuals",
            Value::Deferred(_) => "deferred weight work",
        }
    }
}

//! The machine whose tokens carry tensors.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

use chimera_schedule::analyze::Need;
use chimera_schedule::analyze::timeline::{Awaited, Work};
use chimera_schedule::effects::{Effects, Token, TokenKind};
use chimera_schedule::few::Few;
use chimera_schedule::ids::{BucketId, ChannelId, Rank, WorkerId};
use chimera_schedule::interp::Machine;
use chimera_schedule::op::{Cell, Lane};
use chimera_schedule::program::{Bucket, ShardOp};

use crate::comm::{Comm, CommError, Endpoint, Payload, Tag, all_gather};
use crate::device::{Device, Overlap};
use crate::engine::optim::training::{MOST_SKIPPED, NonFinite};
use crate::engine::optim::updating::Step;
use crate::engine::reduce::reduction::{ReduceError, Reduction};
use crate::engine::reduce::reductions::UnderWay;
use crate::engine::report::timing::Since;
use crate::engine::row::value::Value;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::sync::agreement::{Agreed, Culprit, Record};
use crate::fault::{Class, Fault, Underway};
use crate::stage::{has_output_per_edge, slice_range};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Machine for State<'_, S, D, C> {
    type Value = Value<S>;
    type Error = Fault;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        _: &Effects,
        eaten: Few<Value<S>>,
    ) -> Result<Few<Value<S>>, Fault> {
        let start = self.now();
        let mut eaten = eaten.into_iter();
        let mut made = Few::new();
        for (op, piece) in cell.ops().zip([Overlap::First, Overlap::Second]) {
            self.overlap(cell, piece)?;
            let effects = self.job.program.rules().effects(&op);
            let mine: VecDeque<_> = eaten.by_ref().take(effects.eats.len()).collect();
            let freed = self.kept_bytes(&effects.eats, mine.iter());
            let step = self.steps.first + u64::from(self.job.program.window().step_of(op.span));
            let underway = Underway::Op(op).begin(step);
            let makes = self.run_op(&op, mine)?;
            drop(underway);
            let added = self.kept_bytes(&effects.makes, makes.iter());
            self.steps.activations.change(added, freed);
            made.extend(makes);
        }
        self.overlap(cell, Overlap::Over)?;
        match cell {
            Cell::One(op) if cell.lane() == Lane::Moves => {
                self.record(worker, Work::Move(*op), start);
            }
            _ => self.record(worker, Work::Cell(*cell), start),
        }
        self.poll_sums()?;
        Ok(made)
    }

    /// The transport holds at least as many messages as the proof requires.
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
        let tensor = match value {
            Value::Tensors(tensors) => return self.send_moved(to, token, tensors),
            Value::Memory => {
                let nothing = self.device.zeros(&[1]);
                self.on_device(token.to_string(), nothing)?
            }
            value => value.tensor(),
        };
        let tag = Tag::new(self.steps.first, Payload::Token(token));
        let sent = self.comm.send(to, tag, tensor);
        self.on_wait(token, Need::Other, sent) // of a transport that first issues earlier messages
    }

    fn recv(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<Value<S>>, Fault> {
        let from = self.rank_of(self.job.program.channels()[channel.index()].from, self.group);
        let tag = Tag::new(self.steps.first, Payload::Token(token));
        if token.kind.is_memory() {
            let received = self.comm.try_recv(from, tag);
            let received = self.on_wire(token, received)?;
            return Ok(received.map_or(Poll::Pending, |_| Poll::Ready(Value::Memory)));
        }
        if token.edge().is_none() {
            return Ok(self.recv_moved(from, token)?.map(Value::Tensors));
        }
        let start = self.now();
        let received = self
            .wait(CommError::waited_mut, |state, deadline| state.comm.recv(from, tag, deadline))?;
        self.waited(worker, (Awaited::Message(token), Some(from)), start);
        let Poll::Ready(received) = received else { return Ok(Poll::Pending) };
        let received = self.on_wait(token, Need::Token(token), received)?;
        let n_slices = self.job.program.rules().n_slices();
        let shares = self.job.program.sample_shares() as usize;
        let samples = usize::from(token.span.len) * (self.job.micro_batch_size / shares);
        let (stage, edges) = (&self.stages.held(token.to).stage, self.edges(token.to));
        let expected = match (token.kind, stage.sizes()) {
            (TokenKind::Activation, Some(sizes)) if edges.n_inputs() == 1 => {
                sizes.input_shape(samples)
            }
            (TokenKind::Gradient, Some(sizes)) if !has_output_per_edge(stage) => {
                sizes.output_shape(samples)
            }
            _ => None,
        };
        let slice = (token.span.start % n_slices) as usize;
        let expected = expected.map(|mut shape| {
            shape[0] = samples * slice_range(slice, n_slices as usize, shape[0] / samples).len();
            shape
        });
        self.check_shape(from, expected, token, &received)?;
        Ok(Poll::Ready(Value::Tensor(received)))
    }

    fn reduce(&mut self, _: WorkerId, bucket: BucketId) -> Result<(), Fault> {
        let op = || format!("reduction of {bucket}");
        let gradients = self.take_gradients(bucket);
        let mut own = self.on_device(op(), gradients)?;
        own.extend(self.take_factors(bucket)?);
        let mut own: Vec<_> = own.into_iter().map(Some).collect();
        let number = self.sum_number(bucket);
        let is_bf16 = self.reductions.is_bf16();
        let members = self.job.program.replicas(self.job.width, bucket);
        let parts = self.reductions.parts(bucket, self.takes_factors()).to_vec();
        for (nth, part) in (0..).zip(parts) {
            let of_part = part.tensors.iter().filter_map(|tensor| own[*tensor].take()).collect();
            let start = self.now();
            let State { device, comm, .. } = &mut *self;
            let (which, how) = ((bucket, nth), (Arc::clone(&part.layout), is_bf16));
            let sum = Reduction::start(device, comm, number, which, members.clone(), how, of_part);
            let sum = self.on_wait(op(), Need::Other, sum)?;
            self.reductions.push(UnderWay { bucket, part, sum, start });
        }
        Ok(())
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Fault> {
        let mut begun = None;
        while let Some(mut under_way) = self.reductions.take(bucket) {
            let waits_from = self.now();
            let waited = self.wait(ReduceError::waited_mut, |state, deadline| {
                under_way.sum.wait(&state.device, &mut state.comm, deadline)
            })?;
            self.waited(worker, (Awaited::Sum(bucket), None), waits_from);
            let Poll::Ready(waited) = waited else {
                self.reductions.push(under_way);
                return Ok(Poll::Pending);
            };
            let UnderWay { part, sum, start, .. } = under_way;
            let sums = waited.and_then(|()| sum.finish(&self.device));
            let sums = self.on_sum(bucket, sums)?;
            self.put_sums(bucket, part.tensors.iter().copied().zip(sums));
            begun.get_or_insert(start);
        }
        // A program that awaits a sum it has not started is a bug.
        let start = begun.unwrap_or_else(|| panic!("{bucket} is awaited before its reduction"));
        self.record(worker, Work::Reduce(bucket), start);
        Ok(Poll::Ready(()))
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Fault> {
        self.take_shadow()?;
        let record = self.own_record()?;
        // With the barrier all sums are here. Once the record is sent, others may update.
        self.steps.summed = Some(self.steps.first);
        let (agreed, records) = self.gather_records(worker, &record)?;
        if agreed.is_discarded {
            self.sync.discard();
            return Ok(Poll::Pending);
        }
        let culprit = agreed.culprit.clone().filter(|_| self.job.training.check_finite);
        let Some(Culprit { rank, what, step }) = culprit else {
            self.sync.update(agreed, records);
            return Ok(Poll::Ready(()));
        };
        if self.validates_window() {
            self.sync.repeat(agreed, records);
            return Ok(Poll::Ready(()));
        }
        self.sync.count_skipped();
        let goes_on = self.job.training.non_finite == NonFinite::Skip;
        if !goes_on || self.sync.n_skipped_in_a_row() == MOST_SKIPPED {
            return Err(self.not_finite(rank, &what, step));
        }
        self.sync.skip(agreed, records, format!("{what} is not finite on {rank}"));
        Ok(Poll::Ready(()))
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Fault> {
        // Without the barrier, an update comes before the sync of its step, so the last known sync
        // is not its own.
        if self.sync.skipped().is_some() && !self.updates_alone() {
            return Ok(());
        }
        let start = self.now();
        let (job, number) = (self.job, self.update_number(bucket));
        let (window, Bucket { stages, update, .. }) =
            (job.program.window(), &job.program.buckets()[bucket.index()]);
        let step = update / window.updates_per_step();
        let norm = match self.sync.agreed() {
            _ if self.updates_alone() => self.norm_alone(bucket, step as usize)?,
            Some(agreed) => agreed.steps[0].grad_norm(),
            None => 0.0,
        };
        let training = job.training;
        let grad_scale = training.grad_scale(norm);
        let is_last = update + 1 == window.n_updates();
        let keeps_previous = window.update().row().n_previous() > 0 && !is_last;
        let first = self.steps.first;
        let by = Step { training, step: first + u64::from(step), update: number, grad_scale };
        self.steps.is_within_update |= training.shard_optimizer;
        let underway = Underway::Update(bucket).begin(first + u64::from(step));
        let updated = stages.iter().try_for_each(|stage| {
            let State { stages, device, .. } = &mut *self;
            let Some(held) = stages.update(device, bucket, *stage, keeps_previous, &by)? else {
                return Ok(());
            };
            held.n_updates = update + 1;
            if is_last { Ok(()) } else { held.clear_gradients(device) }
        });
        self.on_device(format!("update of {bucket}"), updated)?;
        drop(underway);
        if let ([stage], true) = (&stages[..], training.takes_factors(number) && number > 0) {
            self.ask_for_inverses(*stage);
        }
        if job.training.gives_updates() {
            self.follow_updates()?;
            self.give_weights(bucket)?;
        }
        self.record(worker, Work::Step(bucket), start);
        Ok(())
    }

    fn shard(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Fault> {
        self.run_shard(worker, op)
    }

    fn give(&mut self, _: WorkerId, _: Lane) -> Value<S> {
        Value::Memory
    }

    fn take(&mut self, _: WorkerId, _: Lane, _: Value<S>) {}
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Stores the sums of a bucket's tensors; `None` for sums that another rank has.
    fn put_sums(
        &mut self,
        bucket: BucketId,
        sums: impl Iterator<Item = (usize, Option<S::Tensor>)>,
    ) {
        let n_gradients = self.stages.places(bucket).len();
        let mut factors = Vec::new();
        for (tensor, sum) in sums {
            match sum {
                sum if tensor >= n_gradients => factors.push(sum),
                Some(sum) => self.stages.put_sum(bucket, tensor, &sum),
                None => {}
            }
        }
        if !factors.is_empty() {
            self.put_factors(bucket, factors);
        }
    }

    /// Lets a device with several queues run the two ops of a pair concurrently.
    fn overlap(&self, cell: &Cell, piece: Overlap) -> Result<(), Fault> {
        match cell {
            Cell::One(_) => Ok(()),
            Cell::Pair(..) => match self.device.asynchronous() {
                Some(device) => self.on_device(cell, device.overlap(piece)),
                None => Ok(()),
            },
        }
    }

    /// The norm of a bucket's gradients, for an update that does not wait for the step sync.
    fn norm_alone(&mut self, bucket: BucketId, step: usize) -> Result<f64, Fault> {
        let (training, window) = (self.job.training, self.job.program.window());
        // All replicas need the norm, but only one counts it.
        let counts = self.is_lead(bucket);
        let (mut squared, mut culprit) = (0.0, String::new());
        if counts || training.needs_barrier() {
            self.add_norms(bucket, &mut squared, &mut culprit)?;
        }
        if training.check_finite && !culprit.is_empty() {
            if !self.validates_window() {
                return Err(self.not_finite(self.comm.rank(), &culprit, step));
            }
            self.steps.culprit = culprit;
        }
        if counts {
            self.steps.squared_norms[step] += squared / f64::from(window.updates_per_step());
        }
        Ok(squared.sqrt())
    }

    fn not_finite(&self, rank: Rank, culprit: &str, step: usize) -> Fault {
        let weights = if self.updates_alone() {
            ""
        } else {
            "; the weights are those of the last sound step"
        };
        let again = match self.sync.n_skipped_in_a_row() {
            0 | 1 => String::new(),
            n => format!(" for the {n}th step in a row"),
        };
        let message = format!(
            "{culprit} is not finite{again}{weights}. Lower the learning rate (lr), or clip gradients (clip)"
        );
        let step = Some(self.steps.first + step as u64);
        Fault { step, ..Fault::new(Class::NonFinite, rank, message) }
    }

    /// Gathers the records of all ranks. Returns the conclusions and the records.
    pub(crate) fn gather_records(
        &mut self,
        worker: WorkerId,
        own: &Record,
    ) -> Result<(Agreed, Vec<Vec<u8>>), Fault> {
        let (start, deadline) = (self.now(), self.deadline());
        let records = all_gather(&mut self.comm, &own.to_bytes(), deadline);
        self.waited(worker, (Awaited::Agreement, None), start);
        let records = self.on_wait("agreement", Need::Record, records)?;
        let rank = self.comm.rank();
        let n_steps = self.steps.squared_norms.len();
        let agreed = Agreed::of(&records, n_steps).map_err(|from| Fault {
            peer: Some(from),
            ..Fault::new(Class::Mismatch, rank, format!("{from} sent an unreadable record"))
        })?;
        self.timing.since = Since::now();
        Ok((agreed, records))
    }
}

//! What one rank has: its stages with their weights, its wires, and where it stands in a step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agreement::Agreed;
use super::handed::Handed;
use super::optimizer::Step;
use super::recent::Recent;
use super::sums::{Reduction, SumError};
use super::{Job, Patience};
use crate::analyze::timeline::{Awaited, Event, Wait, Work};
use crate::analyze::{Need, Scene};
use crate::comm::{Comm, CommError, Position, Tag, What};
use crate::effects::Token;
use crate::fault::{Class, Fault};
use crate::ids::{BucketId, Rank, StageId, WorkerId};
use crate::kernels::{DeviceError, Kernels};
use crate::op::Op;
use crate::stage::Stage;
use crate::update::Update;

/// How long other ranks may take to say where they are.
const ANSWER: Duration = Duration::from_secs(1);

/// After it a rank that goes on is elsewhere.
const MOMENT: Duration = Duration::from_millis(100);

/// A stage with its weights, gradients and moments, in the order of its parameters.
pub(super) struct Held<S: Stage> {
    pub(super) stage: S,
    pub(super) weights: Weights<S>,
    /// The version before, in a double buffer.
    pub(super) previous: Option<Weights<S>>,
    /// Updates since the start of the program.
    pub(super) n_updates: u32,
    pub(super) grads: Vec<S::Tensor>,
    pub(super) moments: Vec<[S::Tensor; 2]>,
}

/// One version of a stage's weights, which lives as long as somebody has to read it.
pub(super) type Weights<S> = Arc<Vec<<S as Stage>::Tensor>>;

/// Where a rank keeps one tensor of a bucket: stage and index of the parameter. A tied tensor may have
/// two places on one rank.
pub(super) type Places = Vec<(StageId, usize)>;

/// One rank's world.
pub(super) struct World<'j, S: Stage, K, C> {
    pub(super) job: Job<'j>,
    pub(super) kernels: K,
    pub(super) comm: Handed<K, C>,
    pub(super) group: usize,
    /// By stage; `None` where another worker holds it.
    pub(super) held: Vec<Option<Held<S>>>,
    /// By bucket of an update and tensor.
    pub(super) layout: Vec<Vec<Places>>,
    /// By channel: the tokens still to come that this worker receives, in order.
    pub(super) expected: Vec<VecDeque<Token>>,
    /// The first step of the program.
    pub(super) step: u64,
    /// Updates of every weight before the program.
    pub(super) n_updates: u64,
    pub(super) under_way: Vec<(BucketId, Reduction<S::Tensor>, f64)>,
    pub(super) losses: Vec<(Op, S::Tensor)>,
    /// By step: squared norms of the gradients of updates that wait for no agreement.
    pub(super) squared_norms: Vec<f64>,
    pub(super) residuals: ResidualBytes,
    pub(super) events: Vec<Event>,
    pub(super) waits: Vec<Wait>,
    pub(super) recent: Recent,
    pub(super) since_agreed: Since,
    pub(super) agreed: Option<Agreed>,
}

/// Bytes of what is kept for backwards to come: residuals, kept inputs, deferred weight work.
#[derive(Default)]
pub(super) struct ResidualBytes {
    pub(super) held: u64,
    pub(super) peak: u64,
}

impl ResidualBytes {
    /// After an op that made and ate so much.
    pub(super) fn change(&mut self, added: u64, freed: u64) {
        self.held = self.held + added - freed;
        self.peak = self.peak.max(self.held);
    }
}

/// Time since the last agreement.
pub(super) struct Since {
    pub(super) start: Instant,
    pub(super) busy_s: f64,
}

impl<S, K, C> World<'_, S, K, C>
where
    S: Stage<Tensor = K::Tensor>,
    K: Kernels,
    C: Comm<K::Tensor>,
{
    /// The rank of a worker of a group.
    pub(super) fn rank_of(&self, worker: WorkerId, group: usize) -> Rank {
        Rank((group * self.job.program.placement().n_workers()) as u32 + u32::from(worker.0))
    }

    /// Whether updates are made while other micro-batches are on their way.
    pub(super) fn is_asynchronous(&self) -> bool {
        self.job.program.window().update() != Update::Flush
    }

    /// Number of a bucket's update since the start of the training.
    pub(super) fn update_number(&self, bucket: BucketId) -> u64 {
        self.n_updates + u64::from(self.job.program.buckets()[bucket.index()].update)
    }

    /// Where this rank keeps the tensors of a bucket.
    pub(super) fn places(&self, bucket: BucketId) -> &[Places] {
        &self.layout[bucket.index() % self.layout.len()]
    }

    /// The version of the weights that a forward reads: the newest, or the one that the rule of the
    /// double buffer names even where a newer one is there.
    pub(super) fn version(&self, op: &Op) -> &Weights<S> {
        let (held, window) = (self.held(op.stage), self.job.program.window());
        let version = match window.update() {
            Update::Flush | Update::Stash { .. } => held.n_updates,
            Update::DoubleBuffer { .. } => window.update_of(op.span).saturating_sub(1),
        };
        if version == held.n_updates {
            return &held.weights;
        }
        held.previous.as_ref().unwrap_or_else(|| panic!("{op} finds no version {version}"))
    }

    pub(super) fn deadline(&self) -> Instant {
        let Patience { first_step, later } = self.job.patience;
        Instant::now() + if self.agreed.is_none() { first_step } else { later }
    }

    /// Announces the first messages of every channel, as many as the channel must be able to hold.
    pub(super) fn post_ahead(&mut self) -> Result<(), Fault> {
        let n_ahead = self.job.program.channel_bound() as usize;
        for (c, tokens) in self.expected.iter().enumerate() {
            let from = self.job.program.channels()[c].from;
            let from = self.rank_of(from, self.group);
            for &token in tokens.iter().take(n_ahead) {
                let tag = Tag { step: self.step, what: What::Token(token) };
                self.comm.post(from, tag).map_err(|e| comm_fault(self.comm.rank(), e))?;
            }
        }
        Ok(())
    }

    pub(super) fn now_s(&self) -> f64 {
        self.job.epoch.elapsed().as_secs_f64()
    }

    pub(super) fn at(&self, fault: Fault, op: impl ToString) -> Fault {
        Fault {
            step: fault.step.or(Some(self.step)),
            op: fault.op.or(Some(op.to_string())),
            ..fault
        }
    }

    pub(super) fn on_device<T>(
        &self,
        op: impl ToString,
        result: Result<T, DeviceError>,
    ) -> Result<T, Fault> {
        result.map_err(|e| self.at(device_fault(self.comm.rank(), e), op))
    }

    pub(super) fn on_wire<T>(
        &self,
        op: impl ToString,
        result: Result<T, CommError>,
    ) -> Result<T, Fault> {
        result.map_err(|e| match e {
            CommError::Aborted(cause) => cause,
            e => self.at(comm_fault(self.comm.rank(), e), op),
        })
    }

    /// As [`on_wire`](World::on_wire), of a wait for what is needed: one that lasted too long is explained.
    pub(super) fn on_wait<T>(
        &mut self,
        op: impl ToString,
        need: Need,
        result: Result<T, CommError>,
    ) -> Result<T, Fault> {
        let Err(CommError::Timeout { from, .. }) = result else { return self.on_wire(op, result) };
        let (program, step, by) = (self.job.program, self.step, self.comm.rank());
        let earlier = self.positions();
        std::thread::sleep(MOMENT);
        let positions = self.positions();
        let verdict = Scene { program, step, positions, earlier }.verdict(by, from, need);
        self.on_wire(op, result).map_err(|fault| Fault {
            peer: Some(verdict.rank),
            message: format!("{}{verdict}", fault.message),
            ..fault
        })
    }

    /// Where all ranks are.
    fn positions(&mut self) -> Vec<Option<Position>> {
        let mut positions = self.comm.positions(Instant::now() + ANSWER);
        positions.resize(self.comm.n_ranks() as usize, None);
        positions
    }

    pub(super) fn record(&mut self, worker: WorkerId, work: Work, start: f64) {
        let end = self.now_s();
        if !matches!(work, Work::Reduce(_)) {
            self.since_agreed.busy_s += end - start;
        }
        self.events.push(Event { worker, work, start, end, after: None });
    }

    /// Notes that the worker waited from `start` until now.
    pub(super) fn waited(&mut self, worker: WorkerId, awaited: Awaited, start: f64) {
        self.waits.push(Wait { worker, awaited, start, end: self.now_s() });
    }

    /// The proof places every op where its stage is, so a stage that is not here is a bug.
    pub(super) fn held(&self, stage: StageId) -> &Held<S> {
        self.held[stage.index()].as_ref().unwrap_or_else(|| panic!("{stage} is not on this worker"))
    }

    pub(super) fn on_sum<T>(
        &mut self,
        bucket: BucketId,
        result: Result<T, SumError>,
    ) -> Result<T, Fault> {
        let op = format!("reduction of {bucket}");
        match result {
            Ok(sums) => Ok(sums),
            Err(SumError::Comm(error, need)) => self.on_wait(op, need, Err(error)),
            Err(SumError::Device(error)) => self.on_device(op, Err(error)),
        }
    }
}

impl<S: Stage> Held<S> {
    /// Zeros for the gradients of the next update. Never cleared in place: the sums of the last may be
    /// shared with other ranks.
    pub(super) fn clear_gradients<K: Kernels<Tensor = S::Tensor>>(
        &mut self,
        kernels: &K,
    ) -> Result<(), DeviceError> {
        for (grad, param) in self.grads.iter_mut().zip(self.stage.params()) {
            *grad = kernels.zeros(&param.shape)?;
        }
        Ok(())
    }

    /// Updates some tensors, which makes the next version of the weights: in place, unless the present
    /// one is still to be read. With `keeps_previous` it is, by forwards to come.
    pub(super) fn update<K: Kernels<Tensor = S::Tensor>>(
        &mut self,
        kernels: &K,
        indices: impl Iterator<Item = usize>,
        keeps_previous: bool,
        step: &Step<'_>,
    ) -> Result<(), DeviceError> {
        self.previous = keeps_previous.then(|| Arc::clone(&self.weights));
        if Arc::get_mut(&mut self.weights).is_none() {
            // Clones of a device's tensors share memory, which the update writes to.
            let copy = |w: &S::Tensor| {
                let mut copy = kernels.zeros(&kernels.shape(w))?;
                kernels.accumulate(&mut copy, w)?;
                Ok(copy)
            };
            self.weights = Arc::new(self.weights.iter().map(copy).collect::<Result<_, _>>()?);
        }
        let weights = Arc::make_mut(&mut self.weights);
        for index in indices {
            let (param, moments) = (&self.stage.params()[index], &mut self.moments[index]);
            step.update(kernels, param, &mut weights[index], &self.grads[index], moments)?;
        }
        Ok(())
    }
}

pub(super) fn held_mut<S: Stage>(held: &mut [Option<Held<S>>], stage: StageId) -> &mut Held<S> {
    held[stage.index()].as_mut().unwrap_or_else(|| panic!("{stage} is not on this worker"))
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
        CommError::Timeout { from, .. } => {
            Fault { peer: Some(from), ..Fault::new(Class::Timeout, rank, message) }
        }
        CommError::Lost { from, .. } => {
            Fault { peer: Some(from), ..Fault::new(Class::PeerLost, rank, message) }
        }
        CommError::Failed(_) => Fault::new(Class::Internal, rank, message),
    }
}

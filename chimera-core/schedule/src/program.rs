//! A lowered, proven timetable.

mod instr;
mod shards;

use std::fmt;

use rustc_hash::FxHashMap;

pub use self::shards::{Gathering, ShardOp};
use crate::effects::{Effects, Rules, Token, TokenKind};
use crate::ir::ids::{BucketId, ChannelId, PipeId, Rank, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Lane, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Window;

/// One instruction of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Instr {
    /// Compute.
    Run(Cell),
    /// Send a token; never waits for the receiver.
    Send(Token, ChannelId),
    /// Wait for a token.
    Recv(Token, ChannelId),
    /// Start to sum a bucket's gradients over its replicas.
    Reduce(BucketId),
    /// Wait for that sum.
    Await(BucketId),
    /// One small exchange of all ranks: gradient norm, finite flag, loss, stop flag.
    Agree,
    /// Update the weights of a bucket.
    Step(BucketId),
    /// Report that memory for the saved activations of another lane's op is free: makes this token.
    Give(Token),
    /// Wait for that memory: eats this token.
    Take(Token),
    /// Send, gather or release sharded weights.
    Shard(ShardOp),
}

impl Instr {
    /// The lane that the instruction runs on. Instructions of one lane keep their order; those of
    /// the other lane run in parallel.
    pub fn lane(&self) -> Lane {
        match self {
            Instr::Run(cell) => cell.lane(),
            Instr::Send(token, _) | Instr::Give(token) => match token.kind {
                TokenKind::Activation | TokenKind::Gradient => Lane::Compute,
                TokenKind::Memory(frees, _) => frees,
                _ => Lane::Moves,
            },
            Instr::Recv(token, _) | Instr::Take(token) => match token.kind {
                TokenKind::Activation | TokenKind::Gradient => Lane::Compute,
                TokenKind::Memory(_, fills) => fills.lane(),
                _ => Lane::Moves,
            },
            Instr::Reduce(_) | Instr::Await(_) | Instr::Agree => Lane::Compute,
            Instr::Step(_) | Instr::Shard(_) => Lane::Compute,
        }
    }
}

/// An [`Instr`] with everything that an executor needs: the tokens that ops eat and make, and the
/// peer of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Instruction {
    /// Compute ops, in order: one, or an atomic pair.
    Run(Vec<(Op, Effects)>),
    /// Send a token, which is then gone here.
    Send {
        /// The token that is sent.
        token: Token,
        /// The worker that receives it.
        to: WorkerId,
    },
    /// Wait for a token.
    Recv {
        /// The token that is received.
        token: Token,
        /// The worker that sends it.
        from: WorkerId,
    },
    /// Start to sum a bucket's gradients over its replicas.
    Reduce(BucketId),
    /// Wait for that sum.
    Await(BucketId),
    /// Agree with all ranks on loss and gradient norm.
    Agree,
    /// Update the weights of a bucket.
    Step(BucketId),
    /// Report that memory for the saved activations of another lane's op is free: makes this token.
    Give(Token),
    /// Wait for that memory: eats this token.
    Take(Token),
    /// Send, gather or release sharded weights.
    Shard(ShardOp),
}

/// A stream of messages that keep their order. There is no order between channels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The sender.
    pub from: WorkerId,
    /// The receiver.
    pub to: WorkerId,
    /// The pipe whose tokens it carries.
    pub pipe: PipeId,
    /// The two stages, the earlier one first. Activations go along the edge, gradients against it.
    pub edge: (StageId, StageId),
    /// [`TokenKind::Activation`] or [`TokenKind::Gradient`]. Moves use [`TokenKind::Away`],
    /// [`TokenKind::Back`] and the memory for them, with an edge from the stage to itself.
    pub kind: TokenKind,
}

/// Between neighbours of a chain, the later stage stands for the edge. The fingerprints of existing
/// programs depend on this format.
impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Channel { from, to, pipe, edge, kind } = self;
        let mut channel = f.debug_struct("Channel");
        channel.field("from", from).field("to", to).field("pipe", pipe);
        match edge {
            (before, behind) if before.0 + 1 == behind.0 => channel.field("boundary", behind),
            _ => channel.field("edge", edge),
        };
        channel.field("kind", kind).finish()
    }
}

/// A set of gradients of one update that are summed over the same replicas together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// The stages with tensors in the bucket: one stage, or all stages that share a tied tensor,
    /// which is then the only content.
    pub stages: Vec<StageId>,
    /// The replicas within a pipeline group, in order of their pipes. In a job of several groups
    /// the replicas are those of group 0, then those of group 1, and so on.
    pub members: Vec<WorkerId>,
    /// The update that the gradients are for, from the start of the window; 0 in synchronous
    /// schedules.
    pub update: u32,
    /// Position in the one order in which every worker starts its reductions.
    pub order: u32,
}

impl Bucket {
    /// Finds the buckets that hold the gradients of each stage and update.
    pub(crate) fn by_stage(buckets: &[Bucket]) -> FxHashMap<(StageId, u32), Vec<BucketId>> {
        let mut by_stage: FxHashMap<_, Vec<_>> = FxHashMap::default();
        for (b, bucket) in (0..).map(BucketId).zip(buckets) {
            for stage in &bucket.stages {
                by_stage.entry((*stage, bucket.update)).or_default().push(b);
            }
        }
        by_stage
    }
}

/// The instructions of every worker of a pipeline group for one step, or for the steps of a window.
/// Only [`lower`](crate::lower::lower()) and what builds on it can make one.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    pub(crate) schedule: String,
    pub(crate) placement: Placement,
    pub(crate) n_micro_batches: u32,
    pub(crate) units_per_micro: u32,
    pub(crate) window: Window,
    pub(crate) rules: Rules,
    pub(crate) channels: Vec<Channel>,
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) rows: Vec<Vec<Instr>>,
    pub(crate) channel_bound: u32,
    pub(crate) peaks: Vec<f64>,
    pub(crate) weight_versions: Vec<u32>,
    pub(crate) has_barrier: bool,
    pub(crate) bordered: Option<Box<Program>>,
}

impl Program {
    /// Name of the schedule, for people; nothing depends on it.
    pub fn schedule(&self) -> &str {
        &self.schedule
    }

    /// The worker of each stage.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Number of micro-batches: N times the steps of the window.
    pub fn n_micro_batches(&self) -> u32 {
        self.n_micro_batches
    }

    /// Number of micro-batches per step, N.
    pub fn micro_batches_per_step(&self) -> u32 {
        self.n_micro_batches / self.window.n_steps().max(1)
    }

    /// Number of units per step that pass a stage.
    pub fn units_of(&self, stage: StageId) -> u32 {
        self.rules.demand().n_units(stage, self.window.units_per_step())
    }

    /// Number of units that a micro-batch is cut into.
    pub fn units_per_micro(&self) -> u32 {
        self.units_per_micro
    }

    /// Number of equal shares that the samples of a micro-batch are cut into: its units, unless
    /// these are slices of sequences.
    pub fn sample_shares(&self) -> u32 {
        self.units_per_micro / self.rules.n_slices()
    }

    /// The division of micro-batches into steps and updates.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The effects of each op.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// All channels that messages use.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// All buckets, update by update: one per stage, then the tied ones.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The buckets of one update. Update `u` has the same buckets, `u` times as many positions
    /// later.
    pub fn buckets_of_update(&self) -> &[Bucket] {
        &self.buckets[..self.buckets.len() / self.window.n_updates().max(1) as usize]
    }

    /// Returns true if a bucket has trained tensors: its gradients are summed, and it is updated.
    pub fn is_trained(&self, bucket: &Bucket) -> bool {
        bucket.stages.iter().any(|stage| self.rules.demand().trains(*stage))
    }

    /// The replicas of a bucket in a job of `width` groups: by pipe for group 0, then for group 1,
    /// and so on.
    pub fn replicas(&self, width: usize, bucket: BucketId) -> Vec<Rank> {
        let workers = &self.buckets[bucket.index()].members;
        let of = |group| workers.iter().map(move |w| self.placement.rank(group, *w));
        (0..width).flat_map(of).collect()
    }

    /// The instructions of each worker, in order.
    pub fn rows(&self) -> &[Vec<Instr>] {
        &self.rows
    }

    /// The instructions of `worker`, in order, with everything that an executor needs.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn instructions(&self, worker: WorkerId) -> impl Iterator<Item = Instruction> + '_ {
        self.rows[worker.index()].iter().map(|instr| self.spelled_out(instr))
    }

    /// An instruction of a row, with its tokens and peers.
    pub fn spelled_out(&self, instr: &Instr) -> Instruction {
        let channel = |id: ChannelId| self.channels[id.index()];
        match *instr {
            Instr::Run(cell) => {
                Instruction::Run(cell.ops().map(|op| (op, self.rules.effects(&op))).collect())
            }
            Instr::Send(token, id) => Instruction::Send { token, to: channel(id).to },
            Instr::Recv(token, id) => Instruction::Recv { token, from: channel(id).from },
            Instr::Reduce(bucket) => Instruction::Reduce(bucket),
            Instr::Await(bucket) => Instruction::Await(bucket),
            Instr::Agree => Instruction::Agree,
            Instr::Step(bucket) => Instruction::Step(bucket),
            Instr::Give(token) => Instruction::Give(token),
            Instr::Take(token) => Instruction::Take(token),
            Instr::Shard(op) => Instruction::Shard(op),
        }
    }

    /// The timetable of its compute, without a caller's own work. It can be lowered again.
    /// Recomputations wait only for their turn.
    pub(crate) fn timetable(&self) -> Timetable {
        let compute = |instr: &Instr| match instr {
            Instr::Run(Cell::One(Op { kind: Kind::Work(_), .. })) => None,
            Instr::Run(cell) => Some(*cell),
            _ => None,
        };
        Timetable {
            schedule: self.schedule.clone(),
            placement: self.placement.clone(),
            graph: self.rules.graph().clone(),
            n_micro_batches: self.n_micro_batches,
            micro_batches_of: self.rules.demand().micro_batches_of().to_vec(),
            units_per_micro: self.units_per_micro,
            is_sliced: self.rules.n_slices() > 1,
            update: self.window.update(),
            rows: self.rows.iter().map(|row| row.iter().filter_map(compute).collect()).collect(),
            selective: self.rules.selective().to_vec(),
            on_demand: false,
            frozen: self.rules.demand().frozen().to_vec(),
        }
    }

    /// The smallest channel capacity, in messages, with which no send waits for ever.
    pub fn channel_bound(&self) -> u32 {
        self.channel_bound
    }

    /// The largest number of micro-batches with activations on each worker at once.
    pub fn peaks(&self) -> &[f64] {
        &self.peaks
    }

    /// The largest number of micro-batches with activations on any one worker at once.
    pub fn peak(&self) -> f64 {
        self.peaks.iter().copied().fold(0.0, f64::max)
    }

    /// The most versions of a stage's weights that each worker holds at once; 1 in synchronous
    /// schedules, 0 for a worker without a stage.
    pub fn weight_versions(&self) -> &[u32] {
        &self.weight_versions
    }

    /// Returns true if optimizer steps wait for the step sync of all ranks.
    pub fn has_barrier(&self) -> bool {
        self.has_barrier
    }

    /// One step, with its barrier, of a window without borders between its steps. It trains a step
    /// again when the updates should have waited for the step sync: the gradient had to be clipped,
    /// or was not finite.
    pub fn bordered(&self) -> Option<&Program> {
        self.bordered.as_deref()
    }

    /// BLAKE3 hash of the whole program, so that ranks can compare theirs.
    pub fn fingerprint(&self) -> String {
        struct Hashed(blake3::Hasher);
        impl fmt::Write for Hashed {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.update(text.as_bytes());
                Ok(())
            }
        }
        let mut hashed = Hashed(blake3::Hasher::new());
        // Its parts are lists in a fixed order, so equal programs have equal text.
        let _ = fmt::Write::write_fmt(&mut hashed, format_args!("{self:?}"));
        hashed.0.finalize().to_string()
    }

    /// The workers whose memory a transfer of saved activations empties and fills; `None` stands
    /// for the host.
    pub fn move_of(&self, op: &Op) -> (Option<WorkerId>, Option<WorkerId>) {
        let Op { kind, pipe, stage, span } = *op;
        let owner = Some(self.placement.worker(pipe, stage));
        let keeper = self.rules.keeper(pipe, stage, span.start);
        match kind {
            Kind::Offload => (owner, keeper),
            Kind::Return | Kind::Reload => (keeper, owner),
            _ => (None, None),
        }
    }

    /// Number of messages that carry data. Notices of free memory, which moves of activations need,
    /// do not count.
    pub fn n_messages(&self) -> usize {
        let carries_data = |instr: &&Instr| match instr {
            Instr::Send(token, _) => !matches!(token.kind, TokenKind::Memory(..)),
            _ => false,
        };
        self.rows.iter().flatten().filter(carries_data).count()
    }
}

//! The messages of a step in one order common to all ranks, for transports that need it.
//!
//! Messages between cells and reductions are ordered by [`prove_in_groups`]. Those of a reduction
//! are ordered in waves, which need only earlier waves. Updated weights follow at the end.

use std::sync::Arc;
use std::task::Poll;

use chimera_schedule::analyze::{Need, Together, prove_in_groups};
use chimera_schedule::collective::Transfer;
use chimera_schedule::effects::Token;
use chimera_schedule::ids::{BucketId, ChannelId, Rank};
use chimera_schedule::program::{Instr, Program};
use rustc_hash::FxHashMap;

use crate::comm::{Comm, CommError, Endpoint, OrderedMessage, Payload, Tag};
use crate::device::Device;
use crate::engine::reduce::reduction::ReduceError;
use crate::engine::reduce::shards::BucketPart;
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::{Class, Fault};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Announces the messages of the program that begins, to a transport that needs their order.
    pub(crate) fn follow_program(&mut self) -> Result<(), Fault> {
        if self.comm.ordered().is_none() {
            return Ok(());
        }
        let takes_factors = self.takes_factors();
        let turns = match self.turns.take() {
            Some((of, turns)) if of == takes_factors => turns,
            _ => self.program_turns()?,
        };
        let followed = self.of_step(&turns);
        self.turns = Some((takes_factors, turns));
        let followed = follow(&mut self.comm, followed);
        self.on_wait("the order of messages", Need::Other, followed)
    }

    /// Announces updated weights to a transport that needs the order, once the update is certain.
    pub(crate) fn follow_updates(&mut self) -> Result<(), Fault> {
        if self.comm.ordered().is_none() || std::mem::replace(&mut self.steps.has_updates, true) {
            return Ok(());
        }
        // Without the barrier, other sums may still be in progress; their messages come first.
        while let Some(mut under_way) = self.reductions.take_unfinished() {
            let waited = self.wait(ReduceError::waited_mut, |state, deadline| {
                under_way.sum.wait(&state.device, &mut state.comm, deadline)
            });
            let bucket = under_way.bucket;
            self.reductions.push(under_way);
            let Poll::Ready(waited) = waited? else { break };
            self.on_sum(bucket, waited)?;
        }
        let me = self.comm.rank();
        let of = |bucket| {
            let members = self.job.program.replicas(self.job.width, bucket);
            let owners = if members.contains(&me) { self.stages.owners(bucket) } else { &[] };
            let mut group = Vec::new();
            for (tensor, owner) in (0..).zip(owners) {
                let payload = Payload::Updated { bucket, tensor };
                let others = members.iter().filter(|member| *member != owner);
                group.extend(others.filter_map(|to| turn(me, (*owner, *to), payload)));
            }
            group
        };
        let groups = self.stages.buckets().map(of).filter(|group| !group.is_empty());
        let followed = self.of_step(&groups.collect::<Vec<_>>());
        let followed = follow(&mut self.comm, followed);
        self.on_wait("the order of messages", Need::Other, followed)
    }

    /// Assigns messages without a step to the current step.
    fn of_step(&self, groups: &[Vec<OrderedMessage>]) -> Vec<Vec<OrderedMessage>> {
        let of_step = |turn: &OrderedMessage| OrderedMessage {
            tag: self.tag_of(turn.tag.payload()),
            ..*turn
        };
        groups.iter().map(|group| group.iter().map(of_step).collect()).collect()
    }

    /// The tag of a payload in the current step.
    fn tag_of(&self, payload: Payload) -> Tag {
        match payload {
            Payload::Gradients { bucket, .. }
            | Payload::Sums { bucket, .. }
            | Payload::Updated { bucket, .. } => Tag::new(self.sum_number(bucket), payload),
            payload => Tag::new(self.steps.first, payload),
        }
    }

    /// This rank's messages in the program, with tags that have no step yet.
    fn program_turns(&self) -> Result<Vec<Vec<OrderedMessage>>, Fault> {
        let (program, me) = (self.job.program, self.comm.rank());
        let refused = |why: String| Fault::new(Class::Usage, me, why);
        let order = prove_in_groups(program);
        let order = order
            .map_err(|refusal| refused(format!("messages have no common order: {refusal}")))?;
        let channels = channels(program);
        let mut groups = Vec::new();
        for events in order {
            let mut together = Vec::new();
            for event in events {
                match event {
                    Together::Message(token) => {
                        let Some(channel) = channels.get(&token) else { continue };
                        let channel = program.channels()[channel.index()];
                        let ends = [channel.from, channel.to];
                        let [from, to] = ends.map(|worker| self.rank_of(worker, self.group));
                        together.extend(turn(me, (from, to), Payload::Token(token)));
                    }
                    Together::Reduction(bucket) => groups.extend(self.reduction_turns(bucket)),
                    Together::Agreement => {}
                }
            }
            groups.push(together);
        }
        groups.retain(|group| !group.is_empty());
        Ok(groups)
    }

    /// This rank's messages in a reduction, by part and wave.
    fn reduction_turns(&self, bucket: BucketId) -> Vec<Vec<OrderedMessage>> {
        let me = self.comm.rank();
        let members = self.job.program.replicas(self.job.width, bucket);
        if !members.contains(&me) {
            return Vec::new();
        }
        let of_part = |(part, of): (u32, &Arc<BucketPart>)| {
            let layout = &of.layout;
            let of = |wave: Vec<_>| {
                let full = wave
                    .into_iter()
                    .filter(|t: &Transfer| !layout.elements(&t.segments).is_empty());
                let turns = full.filter_map(|transfer| {
                    let payload = if transfer.adds {
                        Payload::Gradients { bucket, part }
                    } else {
                        Payload::Sums { bucket, part }
                    };
                    turn(me, (members[transfer.from], members[transfer.to]), payload)
                });
                turns.collect()
            };
            layout.plan().waves(layout.keeps_sums()).into_iter().map(of).collect::<Vec<_>>()
        };
        (0..).zip(self.reductions.parts(bucket, self.takes_factors())).flat_map(of_part).collect()
    }
}

/// The channel of each token that is sent.
fn channels(program: &Program) -> FxHashMap<Token, ChannelId> {
    let sent = program.rows().iter().flatten().filter_map(|instr| match *instr {
        Instr::Send(token, channel) => Some((token, channel)),
        _ => None,
    });
    sent.collect()
}

/// Passes the next messages to a transport that needs their order.
fn follow(comm: &mut impl Endpoint, groups: Vec<Vec<OrderedMessage>>) -> Result<(), CommError> {
    comm.ordered().map_or(Ok(()), |comm| comm.follow(groups))
}

/// A message as `me` sees it, if `me` is one of its ends.
fn turn(me: Rank, (from, to): (Rank, Rank), payload: Payload) -> Option<OrderedMessage> {
    let peer = if from == me { to } else { from };
    let tag = Tag::new(0, payload);
    (from == me || to == me).then_some(OrderedMessage { peer, sends: from == me, tag })
}

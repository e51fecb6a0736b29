//! Progress of messages: issuing them in their turn, and waiting for them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimera_backend_cuda::{At, Driver, Lane, Tensor};
use chimera_core::comm::{Comm, CommError, Endpoint, Host, OrderedMessage, Tag};
use chimera_core::ids::Rank;

use crate::Nccl;
use crate::communicator::Message;
use crate::control::{Header, Line};

impl<D: Driver, C: Comm<Host>> Nccl<D, C> {
    /// Issues all groups whose turn it is. Returns whether there were any.
    pub(crate) fn progress(&mut self) -> Result<bool, CommError> {
        self.watched.check()?;
        let mut moved = false;
        while self.is_ready()? {
            let Some(group) = self.groups.pop_front() else { break };
            self.issue(&group)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Returns true if the next group can run: its sends and the sizes of its receives are there.
    fn is_ready(&mut self) -> Result<bool, CommError> {
        let Some(group) = self.groups.front().filter(|_| !self.lacks_own()) else {
            return Ok(false);
        };
        for OrderedMessage { peer, sends, tag } in group.clone() {
            if !sends && !self.knows(peer, tag)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns true if the next group waits for a tensor of this rank.
    pub(crate) fn lacks_own(&self) -> bool {
        let mut sends = self.groups.front().into_iter().flatten().filter(|turn| turn.sends);
        sends.any(|turn| matches!(self.outbox.get(&(turn.peer, turn.tag)), Some(None)))
    }

    /// Returns true if the header of messages from `from` under `tag` is known.
    fn knows(&mut self, from: Rank, tag: Tag) -> Result<bool, CommError> {
        let key = (false, from, tag.payload());
        if !self.headers.contains_key(&key) {
            let Some(header) = self.control().try_recv(from, header_tag(tag))? else {
                return Ok(false);
            };
            self.headers.insert(key, Header::read(from, header)?);
        }
        Ok(true)
    }

    /// Sends `to` the header of messages under `tag`, the first time.
    pub(crate) fn describe(
        &mut self,
        to: Rank,
        tag: Tag,
        tensor: &Tensor<D::Memory>,
    ) -> Result<(), CommError> {
        let header = Header { element: tensor.element(), shape: tensor.shape().to_vec() };
        match self.headers.get(&(true, to, tag.payload())) {
            Some(known) if *known == header => Ok(()),
            Some(known) => Err(CommError::Failed(format!(
                "{tag} is of shape {:?}, and was of shape {:?} in a step before",
                header.shape, known.shape
            ))),
            None => {
                self.control().send(to, header_tag(tag), header.write())?;
                self.counts.headers += 1;
                self.headers.insert((true, to, tag.payload()), header);
                Ok(())
            }
        }
    }

    fn issue(&mut self, group: &[OrderedMessage]) -> Result<(), CommError> {
        let watched = Arc::clone(&self.watched);
        let (lane, deadline) = (&watched.lane, Instant::now() + watched.patience());
        let is_over = || watched.check().is_err();
        let began = Instant::now();
        let mut parts = Vec::with_capacity(group.len());
        for turn in group {
            let OrderedMessage { peer, sends, tag } = *turn;
            let tensor = if sends {
                self.outbox.remove(&(peer, tag)).flatten()
            } else {
                self.room(peer, tag)?
            };
            let lacking = || CommError::Failed(format!("{tag} is issued before it is there"));
            parts.push((turn, tensor.ok_or_else(lacking)?));
        }
        let taken = on_lane(lane, &parts, &mut Vec::new(), &|messages: &[Message]| {
            watched.communicator.messages(messages, deadline, &is_over)
        })??;
        // A receive that nobody answers holds the group up; a send does not make this rank wait.
        let first = group.iter().find(|turn| !turn.sends).or(group.first());
        let peer = first.map_or(self.rank(), |turn| turn.peer);
        let what = group.iter().map(|turn| turn.tag.to_string()).collect::<Vec<_>>().join(" and ");
        if !taken {
            // An earlier failure elsewhere is the cause.
            self.watched.check()?;
            self.living(peer)?;
            let error = CommError::Timeout { from: peer, what, waited: began.elapsed() };
            self.watched.fail(error.clone());
            return Err(error);
        }
        self.watched.add(peer, what, lane.mark()?);
        self.counts.groups += 1;
        for (turn, tensor) in parts {
            if turn.sends {
                self.counts.sent += 1;
            } else {
                self.counts.received += 1;
                self.inbox.insert((turn.peer, turn.tag), Some(tensor));
            }
        }
        Ok(())
    }

    /// Allocates memory for a message of `from` under `tag`.
    fn room(&self, from: Rank, tag: Tag) -> Result<Option<Tensor<D::Memory>>, CommError> {
        let Some(header) = self.headers.get(&(false, from, tag.payload())) else { return Ok(None) };
        let memory = self.watched.lane.allocate(header.bytes().unwrap_or_default())?;
        Ok(Some(Tensor::of(memory, header.element, header.shape.clone())))
    }

    /// Returns the tensor that `from` sent under `tag`, if it is on its way to this device.
    pub(crate) fn look(
        &mut self,
        from: Rank,
        tag: Tag,
    ) -> Result<Option<Tensor<D::Memory>>, CommError> {
        if from == self.rank() {
            return Ok(self.own.remove(&tag));
        }
        match self.inbox.get(&(from, tag)) {
            Some(None) => Ok(None),
            Some(Some(_)) => Ok(self.inbox.remove(&(from, tag)).flatten()),
            None => self.host.try_recv(from, tag),
        }
    }

    /// Waits until `look` returns something that `from` has to send.
    pub(crate) fn until<R>(
        &mut self,
        deadline: Instant,
        from: Rank,
        what: impl fmt::Display,
        mut look: impl FnMut(&mut Self) -> Result<Option<R>, CommError>,
    ) -> Result<R, CommError> {
        let began = Instant::now();
        for n in 0u32.. {
            let moved = self.progress()?;
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if moved {
                continue;
            }
            if n % 64 == 63 {
                self.living(from)?;
            }
            if Instant::now() >= deadline {
                break;
            }
            if n < 1000 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        Err(CommError::Timeout { from, what: what.to_string(), waited: began.elapsed() })
    }

    /// Returns an error if the host transport has lost a rank, or a rank has given up.
    fn living(&mut self, rank: Rank) -> Result<(), CommError> {
        match self.control().recv(rank, Line::Silence.tag(0), Instant::now()) {
            Err(CommError::Timeout { .. }) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the tag of a message's header, the same in all steps.
fn header_tag(tag: Tag) -> Tag {
    Tag::new(0, tag.payload())
}

/// Collects the memory of `parts` as messages on the lane, then calls `act` once with all of them.
fn on_lane<L: Lane, R>(
    lane: &L,
    parts: &[(&OrderedMessage, Tensor<L::Memory>)],
    messages: &mut Vec<Message>,
    act: &dyn Fn(&[Message]) -> R,
) -> Result<R, CommError> {
    let Some(((turn, tensor), rest)) = parts.split_first() else { return Ok(act(messages)) };
    let (OrderedMessage { peer, sends, .. }, bytes) = (turn, tensor.bytes());
    let next = |at: At| {
        let at = At { address: at.address.wrapping_byte_add(bytes.start), ..at };
        messages.push(Message { peer: peer.0, sends: *sends, at, bytes: bytes.len() });
        on_lane(lane, rest, messages, act)
    };
    if *sends { lane.reading(tensor.memory(), next)? } else { lane.writing(tensor.memory(), next)? }
}

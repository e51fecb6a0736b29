//! Received messages, filed by kind.

use std::mem::replace;

use chimera_core::comm::{CommError, Host, Position, Tag};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use rustc_hash::FxHashMap;

use crate::message::Message;

/// Messages that have arrived and were not taken.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub(crate) tensors: FxHashMap<(Rank, Tag), Host>,
    pub(crate) bytes: FxHashMap<(Rank, u64), Vec<u8>>,
    /// Ranks that send nothing more.
    pub(crate) gone: Vec<Rank>,
    /// Ranks whose process has ended without a good-bye.
    pub(crate) dead: Vec<Rank>,
    /// Ranks that asked for this rank's progress, each with the number of its question.
    pub(crate) asked: Vec<(Rank, u64)>,
    /// Answers of others, by the number of the question.
    pub(crate) answers: FxHashMap<(Rank, u64), Position>,
    /// Stalled ranks that are to be ended.
    pub(crate) evicted: Vec<Rank>,
    /// Whether the run is to stop.
    pub(crate) is_stopping: bool,
    /// Whether rank 0 has passed the stop on to the others.
    pub(crate) has_passed_on: bool,
    /// The cause that ends all waits.
    pub(crate) ended: Option<CommError>,
    /// Whether the others have been informed.
    has_told: bool,
    /// Ranks that sent a good-bye while messages of theirs are still under way.
    pub(crate) leaving: Vec<Rank>,
}

impl Mailbox {
    /// Files a message. An unreadable one ends all waits.
    pub(crate) fn take(&mut self, from: Rank, words: Vec<f32>) {
        if let Err(reason) = self.file(from, words) {
            self.ended.get_or_insert(CommError::Unreadable { from, reason });
        }
    }

    /// Files a message by its kind.
    fn file(&mut self, from: Rank, words: Vec<f32>) -> Result<(), String> {
        let twice = match Message::from_words(words)? {
            Message::Tensor(tag, host) => {
                let earlier = self.tensors.insert((from, tag), host);
                earlier.map(|_| format!("{tag} a second time"))
            }
            Message::Bytes(number, bytes) => {
                let earlier = self.bytes.insert((from, number), bytes);
                earlier.map(|_| "control data a second time".into())
            }
            Message::Ask(number) => {
                self.asked.push((from, number));
                None
            }
            Message::Where(number, bits) => {
                self.answers.insert((from, number), Position::from_bits(bits));
                None
            }
            Message::Abort(cause) => {
                self.ended.get_or_insert(CommError::Aborted(cause));
                None
            }
            Message::Evict(rank) => {
                self.evicted.push(rank);
                None
            }
            Message::Stop => {
                self.is_stopping = true;
                None
            }
            Message::Bye => {
                self.leaving.push(from);
                None
            }
        };
        twice.map_or(Ok(()), Err)
    }

    /// Files a tensor that a rank sends itself.
    pub(crate) fn file_own(&mut self, me: Rank, tag: Tag, host: Host) {
        let earlier = self.tensors.insert((me, tag), host);
        assert!(earlier.is_none(), "{me} sent {tag:?} to itself twice");
    }

    /// Returns the cause if all waits have ended.
    pub(crate) fn check(&self) -> Result<(), CommError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Makes every wait end with this cause, unless another is known. Returns what to send to the
    /// others, once. A rank that was informed sends it too: its good-bye might otherwise arrive
    /// before the report of the first rank.
    pub(crate) fn abort(&mut self, cause: &Fault) -> Option<Fault> {
        let cause = match &self.ended {
            Some(CommError::Aborted(known)) => known.clone(),
            _ => cause.clone(),
        };
        self.ended = Some(CommError::Aborted(cause.clone()));
        (!replace(&mut self.has_told, true)).then_some(cause)
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::fault::Class;

    use super::*;

    /// A message of another version ends all waits as a mismatch, not as a fault of the transport.
    #[test]
    fn what_cannot_be_read_is_a_mismatch() {
        let mut mailbox = Mailbox::default();
        mailbox.take(Rank(2), Message::Ask(1).into_words().expect("sendable"));
        assert_eq!((mailbox.ended.clone(), mailbox.asked.len()), (None, 1));
        mailbox.take(Rank(3), vec![1.5; 64]);
        let fault = mailbox.ended.expect("an end").into_fault(Rank(0));
        assert_eq!(
            (fault.class, fault.class.code(), fault.peer),
            (Class::Mismatch, 10, Some(Rank(3)))
        );
        assert_eq!(
            fault.message,
            "rank 3 sent something unreadable: it is not of this version of chimera; start the same version on \
             all ranks"
        );
    }
}

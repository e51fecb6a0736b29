//! What has come from other ranks, where it is looked for.

use std::mem::replace;

use chimera_core::comm::{CommError, Host, Position, Tag};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use rustc_hash::FxHashMap;

use crate::message::Message;

/// What has come and was not taken.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub(crate) tensors: FxHashMap<(Rank, Tag), Host>,
    pub(crate) bytes: FxHashMap<(Rank, u64), Vec<u8>>,
    /// Ranks that send nothing more.
    pub(crate) gone: Vec<Rank>,
    /// Ranks whose process has ended without a word.
    pub(crate) dead: Vec<Rank>,
    /// Who asked where this rank is, with the number of the question.
    pub(crate) asked: Vec<(Rank, u64)>,
    /// Answers of others, by the number of the question.
    pub(crate) answers: FxHashMap<(Rank, u64), Position>,
    /// Ranks that are stalled, and are to be ended.
    pub(crate) evicted: Vec<Rank>,
    /// Whether the run is to stop.
    pub(crate) is_stopping: bool,
    /// Whether rank 0 has told the others so.
    pub(crate) has_passed_on: bool,
    /// Why all waits end.
    pub(crate) ended: Option<CommError>,
    /// Whether the others have been told.
    has_told: bool,
    /// Ranks that said good-bye while messages of theirs are still under way.
    pub(crate) leaving: Vec<Rank>,
}

impl Mailbox {
    /// Files what came; what cannot be read ends all waits.
    pub(crate) fn take(&mut self, from: Rank, words: Vec<f32>) {
        if let Err(reason) = self.file(from, words) {
            self.ended.get_or_insert(CommError::Unreadable { from, reason });
        }
    }

    /// Puts what came where it is looked for.
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

    /// Puts a tensor that a rank sends itself.
    pub(crate) fn file_own(&mut self, me: Rank, tag: Tag, host: Host) {
        let earlier = self.tensors.insert((me, tag), host);
        assert!(earlier.is_none(), "{me} sent {tag:?} to itself twice");
    }

    /// Whether waits go on.
    pub(crate) fn check(&self) -> Result<(), CommError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Makes every wait end with this cause, unless another stands. Returns what to tell the others, once: also who
    /// was told tells, or its good-bye might come before the words of who told it.
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

    /// What another version sends ends all waits, as a mismatch and not as a fault of the transport.
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
            "rank 3 sent what cannot be read: it is not of this version of chimera; start the same version on \
             all ranks"
        );
    }
}

//! Received messages, and the state of other ranks that follows from them.

use std::mem::replace;

use chimera_core::comm::{CommError, Host, Inbox, Message, Position};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use rustc_hash::FxHashMap;

/// Messages that have arrived and were not taken.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub(crate) inbox: Inbox<Host>,
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
    /// Whether the others have been informed of an abort.
    has_told: bool,
    /// Ranks that sent a good-bye while messages of theirs are still under way.
    pub(crate) leaving: Vec<Rank>,
}

impl Mailbox {
    /// Files a message. An unreadable one ends all waits.
    pub(crate) fn take(&mut self, from: Rank, words: Vec<f32>) {
        if let Err(reason) = self.file(from, words) {
            self.inbox.end(CommError::Unreadable { from, reason });
        }
    }

    /// Files a message by its kind.
    fn file(&mut self, from: Rank, words: Vec<f32>) -> Result<(), String> {
        match self.inbox.file(from, Message::from_words(words)?)? {
            Some(Message::Ask(number)) => self.asked.push((from, number)),
            Some(Message::Where(number, bits)) => {
                self.answers.insert((from, number), Position::from_bits(bits));
            }
            Some(Message::Evict(rank)) => self.evicted.push(rank),
            Some(Message::Stop) => self.is_stopping = true,
            Some(Message::Bye) => self.leaving.push(from),
            _ => {}
        }
        Ok(())
    }

    /// Makes every wait end with this cause, unless another is known. Returns what to send to the
    /// others, once. A rank that was informed sends it too: its good-bye might otherwise arrive
    /// before the report of the first rank.
    pub(crate) fn abort(&mut self, cause: &Fault) -> Option<Fault> {
        let cause = self.inbox.abort(cause);
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
        assert_eq!((mailbox.inbox.check(), mailbox.asked.len()), (Ok(()), 1));
        mailbox.take(Rank(3), vec![1.5; 64]);
        let fault = mailbox.inbox.check().expect_err("an end").into_fault(Rank(0));
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

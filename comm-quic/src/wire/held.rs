//! The memory that a peer can make this rank hold.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bytes of long frames that a rank has under way to another one. A longer frame goes alone.
pub(super) const MAX_UNDER_WAY: usize = 128 << 20;
/// Bytes in parts beyond one longest frame: what a rank has under way, as many short frames as there are
/// streams, and what has arrived and is confirmed, but not read.
pub(super) const SPARE: usize = 192 << 20;
/// Bytes of whole frames that wait for the rank. Its peer has to wait while there are more.
pub(super) const MAX_WHOLE: usize = 64 << 20;

/// Bytes of a peer's frames, until the rank takes them.
pub(super) struct Held {
    spare: usize,
    most_whole: usize,
    in_parts: AtomicUsize,
    whole: AtomicUsize,
    /// Wakes the reader when the rank has taken a frame.
    pub(super) taken: Notify,
}

/// A frame of which not all has arrived.
pub(super) struct Part<'h> {
    of: &'h Held,
    pub(super) bytes: Vec<u8>,
    limit: usize,
}

/// The reason to refuse a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TooMuch {
    /// It is longer than any of the run.
    Long,
    /// It and others in parts take more than a peer with this program has under way.
    Many,
}

impl Held {
    pub(super) fn new(spare: usize, most_whole: usize) -> Held {
        let (in_parts, whole) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Held { spare, most_whole, in_parts, whole, taken: Notify::new() }
    }

    /// Begins a frame of at most `limit` bytes.
    pub(super) fn part(&self, limit: usize) -> Part<'_> {
        Part { of: self, bytes: Vec::new(), limit }
    }

    /// Returns true if new frames may begin.
    pub(super) fn has_room(&self) -> bool {
        self.whole.load(Ordering::Relaxed) < self.most_whole
    }

    /// Counts a frame that the rank has taken.
    pub(super) fn take(&self, n_bytes: usize) {
        self.whole.fetch_sub(n_bytes, Ordering::Relaxed);
        self.taken.notify_one();
    }
}

impl Part<'_> {
    /// Appends bytes that have arrived.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), TooMuch> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(TooMuch::Long);
        }
        let before = self.of.in_parts.fetch_add(bytes.len(), Ordering::Relaxed);
        self.bytes.extend_from_slice(bytes);
        let most = self.limit.saturating_add(self.of.spare);
        if before + bytes.len() > most { Err(TooMuch::Many) } else { Ok(()) }
    }

    /// Returns the frame, which is whole.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.of.whole.fetch_add(self.bytes.len(), Ordering::Relaxed);
        self.of.in_parts.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.of.in_parts.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl TooMuch {
    /// Says what a peer has sent.
    pub(super) fn in_words(self, limit: usize) -> String {
        match self {
            TooMuch::Long => format!("a message of more than {limit} bytes"),
            TooMuch::Many => "parts of too many messages at a time".into(),
        }
    }
}

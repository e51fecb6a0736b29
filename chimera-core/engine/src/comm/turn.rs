//! Messages in the common order of a transport.

use chimera_schedule::ids::Rank;

use super::Tag;

/// A message, as seen by one of its two ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedMessage {
    /// The other rank.
    pub peer: Rank,
    /// Whether this rank sends the message.
    pub sends: bool,
    /// Tag of the message.
    pub tag: Tag,
}

//! The place of a message in the order in which a transport issues them.

use chimera_schedule::ids::Rank;

use super::Tag;

/// A message as one of its two ranks sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedMessage {
    /// The other rank.
    pub peer: Rank,
    /// Whether this rank sends it.
    pub sends: bool,
    /// Its name.
    pub tag: Tag,
}

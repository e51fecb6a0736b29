//! Reactions to a dead or stalled process rank, by name.

use chimera_core::named_values;

named_values! {
    /// The reaction to a dead rank.
    pub enum Survive: "survive" {
        /// All ranks end.
        Off = "off",
        /// A new process takes its place, and gets its state from replicas.
        Respawn = "respawn",
        /// The other ranks continue without it and share its work.
        Narrow = "narrow",
    }
}

named_values! {
    /// The living ranks that are evicted.
    pub enum Evict: "evict" {
        /// None: a timeout on a stalled rank ends the run.
        Off = "off",
        /// Ranks that make no progress: they are killed, and then count as dead.
        Stalled = "stalled",
    }
}

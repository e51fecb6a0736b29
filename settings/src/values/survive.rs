//! Reactions to a dead or stalled process rank, by name.

use std::str::FromStr;

use chimera_core::notation::by_name;

/// The reaction to a dead rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survive {
    /// All ranks end.
    Off,
    /// A new process takes its place, and gets its state from replicas.
    Respawn,
    /// The other ranks continue without it and share its work.
    Narrow,
}

impl Survive {
    /// All reactions with their names on the command line.
    pub const ALL: [(&'static str, Survive); 3] =
        [("off", Survive::Off), ("respawn", Survive::Respawn), ("narrow", Survive::Narrow)];
}

impl FromStr for Survive {
    type Err = String;

    fn from_str(name: &str) -> Result<Survive, String> {
        by_name("survive", name, &Survive::ALL)
    }
}

/// The living ranks that are evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evict {
    /// None: a timeout on a stalled rank ends the run.
    Off,
    /// Ranks that make no progress: they are killed, and then count as dead.
    Stalled,
}

impl Evict {
    /// All values with their names on the command line.
    pub const ALL: [(&'static str, Evict); 2] = [("off", Evict::Off), ("stalled", Evict::Stalled)];
}

impl FromStr for Evict {
    type Err = String;

    fn from_str(name: &str) -> Result<Evict, String> {
        by_name("evict", name, &Evict::ALL)
    }
}

//! What to do when a rank that is a process has died, or is stalled, by name.

use std::str::FromStr;

use chimera_core::notation::by_name;

/// What to do when a rank has died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survive {
    /// All ranks end.
    Off,
    /// A process is started in its place, and gets what it held from replicas.
    Respawn,
    /// The others train on without it and share its work.
    Narrow,
}

impl Survive {
    /// Every one with its name on the command line.
    pub const ALL: [(&'static str, Survive); 3] =
        [("off", Survive::Off), ("respawn", Survive::Respawn), ("narrow", Survive::Narrow)];
}

impl FromStr for Survive {
    type Err = String;

    fn from_str(name: &str) -> Result<Survive, String> {
        by_name("survive", name, &Survive::ALL)
    }
}

/// Which ranks that live the others go on without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evict {
    /// None: a wait for one that is stalled ends the run.
    Off,
    /// Ranks that make no progress: they are ended, and then dead.
    Stalled,
}

impl Evict {
    /// Every one with its name on the command line.
    pub const ALL: [(&'static str, Evict); 2] = [("off", Evict::Off), ("stalled", Evict::Stalled)];
}

impl FromStr for Evict {
    type Err = String;

    fn from_str(name: &str) -> Result<Evict, String> {
        by_name("evict", name, &Evict::ALL)
    }
}

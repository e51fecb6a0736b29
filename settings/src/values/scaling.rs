//! The scaling of Chimera to more than D micro-batches, by name.

use std::str::FromStr;

use chimera_core::notation::by_name;
use chimera_core::schedule;

/// A [scaling](schedule::Scaling), or the best one that needs no more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scaling {
    /// The shorter of direct and halving, as in a [`Request`](chimera_core::request::Request).
    Auto,
    /// A given scaling.
    Is(schedule::Scaling),
}

impl Scaling {
    /// All scalings with their names on the command line.
    pub const ALL: [(&'static str, Scaling); 4] = [
        ("auto", Scaling::Auto),
        ("direct", Scaling::Is(schedule::Scaling::Direct)),
        ("doubling", Scaling::Is(schedule::Scaling::Doubling)),
        ("halving", Scaling::Is(schedule::Scaling::Halving)),
    ];

    /// Returns the scaling for a shape: direct if the best one has not been found yet.
    pub fn of_shape(self) -> schedule::Scaling {
        match self {
            Scaling::Auto => schedule::Scaling::Direct,
            Scaling::Is(scaling) => scaling,
        }
    }
}

impl FromStr for Scaling {
    type Err = String;

    fn from_str(name: &str) -> Result<Scaling, String> {
        by_name("scaling", name, &Scaling::ALL)
    }
}

//! How Chimera is scaled beyond D micro-batches, by name.

use std::str::FromStr;

use chimera_core::notation::by_name;
use chimera_core::schedule;

/// A [scaling](schedule::Scaling), or the best that needs no more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scaling {
    /// The shorter of direct and halving, as a [`Request`](chimera_core::request::Request) finds it.
    Auto,
    /// This one.
    Is(schedule::Scaling),
}

impl Scaling {
    /// Every one with its name on the command line.
    pub const ALL: [(&'static str, Scaling); 4] = [
        ("auto", Scaling::Auto),
        ("direct", Scaling::Is(schedule::Scaling::Direct)),
        ("doubling", Scaling::Is(schedule::Scaling::Doubling)),
        ("halving", Scaling::Is(schedule::Scaling::Halving)),
    ];

    /// The scaling of a shape: where the best is still to be found, direct.
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

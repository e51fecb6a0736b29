//! Numbers that activations are made of.

use std::fmt;
use std::str::FromStr;

use chimera_core::notation::by_name;

/// What activations are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// f32, like everything else.
    F32,
    /// bf16; weights, their gradients, moments and sums stay f32.
    Bf16,
}

impl Precision {
    /// By name.
    pub const ALL: [(&'static str, Precision); 2] =
        [("f32", Precision::F32), ("bf16", Precision::Bf16)];

    /// Bytes of an element of an activation.
    pub fn activation_bytes(self) -> u64 {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Precision, String> {
        by_name("precision", name, &Precision::ALL)
    }
}

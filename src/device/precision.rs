//! Numbers that matrix products, and on GPUs activations, are made of.

use std::fmt;
use std::str::FromStr;

use chimera_core::notation::by_name;

/// What the operands of matrix products are made of; on GPUs activations and their gradients too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// f32, like everything else.
    F32,
    /// f32 whose last 13 bits matrix products leave out, on NVIDIA GPUs.
    Tf32,
    /// bf16; weights, their gradients, moments and sums stay f32.
    Bf16,
}

impl Precision {
    /// By name.
    pub const ALL: [(&'static str, Precision); 3] =
        [("f32", Precision::F32), ("tf32", Precision::Tf32), ("bf16", Precision::Bf16)];

    /// Bytes of an element of an activation, on the host or on another device. The host keeps activations in f32, and
    /// rounds them to bf16 as it multiplies them.
    pub fn activation_bytes(self, on_host: bool) -> u64 {
        match self {
            Precision::Bf16 if !on_host => 2,
            _ => 4,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
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

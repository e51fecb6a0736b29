//! Precisions of matrix products and, on GPUs, of activations.

use chimera_core::named_values;
use std::fmt;

named_values! {
    /// The number format of the operands of matrix products; on GPUs also of activations and their
    /// gradients.
    pub enum Precision: "precision" {
        /// f32, like everything else.
        F32 = "f32",
        /// f32 of which matrix products drop the last 13 bits, on NVIDIA GPUs.
        Tf32 = "tf32",
        /// bf16; weights, their gradients, moments and accumulated sums stay f32.
        Bf16 = "bf16",
    }
}

impl Precision {
    /// Bytes of an element of an activation, on the host or on another device. The host keeps
    /// activations in f32, and rounds them to bf16 when it multiplies them.
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

//! Ways to multiply numbers.

use chimera_core::named_values;

use super::Precision;

named_values! {
    /// The way in which the host multiplies operands rounded to bf16. Results of two ways differ in
    /// their last bits.
    pub enum Bf16Products: "bf16-products" {
        /// The fastest of the others on this processor, as measured.
        Auto = "auto",
        /// The tiles of AMX.
        Amx = "amx",
        /// The processor's instruction for dot products of bf16.
        Dot = "dot",
        /// Products in f32 of rounded operands, by FMA.
        Fma = "fma",
    }
}

/// The number format of a device's matrix products, and the way in which the host multiplies bf16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// The format of operands.
    pub precision: Precision,
    /// The way for bf16 on the host; other devices have one only.
    pub bf16_products: Bf16Products,
}

impl From<Precision> for Numbers {
    fn from(precision: Precision) -> Self {
        Self { precision, bf16_products: Bf16Products::Auto }
    }
}

//! The ways to round the operands of products.

use std::sync::OnceLock;

use super::bf16::{self, Form};
use super::peak::{measured_bf16_peak, measured_peak};

/// The rounding of operands before they are multiplied; sums are f32.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operands {
    /// They are not rounded.
    F32,
    /// They are rounded to bf16 while they are packed.
    Bf16(Form),
}

/// A way to multiply operands rounded to bf16. Results differ in their last bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bf16Products {
    /// `vdpbf16ps` of AVX-512 BF16, which adds two products at once. It is twice as fast as FMA on
    /// AMD's processors since Zen 4.
    Dot,
    /// FMA of rounded operands in f32, on any processor. It is twice as fast as `vdpbf16ps` on
    /// Intel's processors up to Sapphire Rapids.
    Fma,
}

impl Bf16Products {
    /// All ways.
    pub const ALL: [Self; 2] = [Self::Dot, Self::Fma];

    /// Returns the fastest way on this processor, as measured once in a process. Instructions
    /// differ by a factor of two, so other work on the machine does not change the answer.
    pub fn fastest() -> Self {
        static FASTEST: OnceLock<Bf16Products> = OnceLock::new();
        *FASTEST.get_or_init(|| match measured_bf16_peak() {
            Some(dot) if dot > measured_peak() => Self::Dot,
            _ => Self::Fma,
        })
    }

    /// Returns such operands, if the processor has the instructions.
    pub(crate) fn operands(self) -> Option<Operands> {
        let form = match self {
            Self::Dot => bf16::dot()?,
            Self::Fma => bf16::fma(),
        };
        Some(Operands::Bf16(form))
    }
}

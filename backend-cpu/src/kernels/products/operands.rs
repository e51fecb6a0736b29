//! The ways to round the operands of products.

use std::sync::OnceLock;

use super::bf16::{self, Form};
use super::peak::{dot_peak, measured_peak};

/// The rounding of operands before they are multiplied; sums are f32.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operands {
    /// Operands that are not rounded.
    F32,
    /// Operands that are copied, rounded to bf16, and multiplied as f32.
    Rounded,
    /// Operands that are rounded to bf16 while they are packed.
    Bf16(Form),
}

/// A way to multiply operands rounded to bf16. Results differ in their last bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bf16Products {
    /// `tdpbf16ps` of AMX, which multiplies tiles. It is 8 times as fast as FMA on Intel's
    /// processors since Sapphire Rapids.
    Amx,
    /// `vdpbf16ps` of AVX-512 BF16, which adds two products at once. It is twice as fast as FMA on
    /// AMD's processors since Zen 4.
    Dot,
    /// FMA of rounded operands in f32, on any processor. It is twice as fast as `vdpbf16ps` on
    /// Intel's processors up to Sapphire Rapids.
    Fma,
}

impl Bf16Products {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Amx, Self::Dot, Self::Fma];

    /// Returns the fastest way on this processor, as measured once in a process. Instructions
    /// differ by a factor of two, so other work on the machine does not change the answer.
    pub fn fastest() -> Self {
        static FASTEST: OnceLock<Bf16Products> = OnceLock::new();
        *FASTEST.get_or_init(|| {
            let rate = |way: &Self| way.peak().unwrap_or(0.0);
            Self::ALL.into_iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap_or(Self::Fma)
        })
    }

    /// Measures the highest floating-point rate of one thread, per second, if the processor has the
    /// instructions.
    pub fn peak(self) -> Option<f64> {
        match self {
            Self::Amx => bf16::amx_peak(),
            Self::Dot => dot_peak(),
            Self::Fma => Some(measured_peak()),
        }
    }

    /// Returns such operands, if the processor has the instructions.
    pub(crate) fn operands(self) -> Option<Operands> {
        match self {
            Self::Amx => bf16::amx().map(Operands::Bf16),
            Self::Dot => bf16::dot().map(Operands::Bf16),
            Self::Fma => Some(Operands::Rounded),
        }
    }
}

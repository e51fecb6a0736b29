//! Products of operands rounded to bf16, summed in f32 by `vdpbf16ps` of AVX-512 BF16.
//!
//! The operands stay f32 in memory and are rounded while they are packed. Infinities and NaNs are
//! kept, and a number above the largest bf16 becomes an infinity. The instruction treats denormal
//! operands and sums as zero.
//!
//! (No established crate has such a product of f32 operands: `gemm` multiplies bf16 in f32, and the
//! young `gemmkit` takes operands that are bf16 in memory already.)

#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(test)]
mod tests;

/// Proof that this processor has the instructions.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // no other processor has them
pub(crate) struct Supported(());

impl Supported {
    /// Returns the proof if the processor has them.
    pub(crate) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let has = std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512bf16");
            has.then_some(Self(()))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::RoundedProduct;

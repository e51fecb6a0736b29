//! Products of operands rounded to bf16 and summed in f32.
//!
//! The operands stay f32 in memory. With AVX-512 BF16 they are rounded while they are packed; on
//! other processors, products in f32 take rounded copies. Infinities and NaNs are kept, a number
//! above the largest bf16 becomes an infinity, and denormal operands become zero.
//!
//! (No established crate has such a product of f32 operands: `gemm` multiplies bf16 in f32, and the
//! young `gemmkit` takes operands that are bf16 in memory already.)

#[cfg(target_arch = "x86_64")]
mod blocks;
pub(crate) mod copies;
#[cfg(target_arch = "x86_64")]
mod form;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(test)]
mod tests;

/// Proof that this processor has AVX-512 BF16, and the form of packed operands.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // no other processor has it
pub(crate) struct Supported {
    form: PackedForm,
}

/// A bf16 or two in a word of packed operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PackedForm {
    Pairs,
    Singles,
}

impl Supported {
    /// Returns the proof if the processor has it.
    pub(crate) fn detect(form: PackedForm) -> Option<Self> {
        has_bf16().then_some(Self { form })
    }
}

/// Returns true if the processor has AVX-512 BF16.
pub(crate) fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::RoundedProduct;

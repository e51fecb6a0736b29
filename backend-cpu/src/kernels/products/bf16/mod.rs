//! Products of operands rounded to bf16 and summed in f32, by instructions for them.
//!
//! The operands stay f32 in memory, and are rounded while they are packed. Infinities and NaNs are
//! kept, a number above the largest bf16 becomes an infinity, and denormal operands become zero.
//!
//! (No established crate has such a product of f32 operands: `gemm` multiplies bf16 in f32, and the
//! young `gemmkit` takes operands that are bf16 in memory already.)

#[cfg(target_arch = "x86_64")]
mod amx;
mod blocks;
#[cfg(target_arch = "x86_64")]
mod dot;
mod form;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod words;

pub(crate) use blocks::RoundedProduct;
pub(crate) use form::Form;

/// Returns the form for the processor's dot product of bf16, if it has one.
pub(crate) fn dot() -> Option<Form> {
    #[cfg(target_arch = "x86_64")]
    return has_bf16().then_some(dot::FORM);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Returns the form for the processor's tiles of bf16, if it has them.
pub(crate) fn amx() -> Option<Form> {
    #[cfg(target_arch = "x86_64")]
    return amx::is_permitted().then_some(amx::FORM);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Measures the highest rate of tiles, per second and thread, if the processor has them.
pub(crate) fn amx_peak() -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has tiles.
    return amx::is_permitted().then(|| unsafe { amx::peak() });
    #[cfg(not(target_arch = "x86_64"))]
    None
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

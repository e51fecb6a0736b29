//! Properties of a GPU that follow from its compute capability.

/// Returns true if the tensor cores take TF32 and bf16, as they do since Ampere.
pub(crate) fn has_tensor_cores(capability: (i32, i32)) -> bool {
    capability >= (8, 0)
}

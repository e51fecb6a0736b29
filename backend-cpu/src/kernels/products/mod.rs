//! Products of matrices, in f32 and in bf16.

pub(crate) mod bf16;
mod copies;
pub(crate) mod matmul;
pub(super) mod matrix;
pub(crate) mod operands;
pub(super) mod peak;
pub(super) mod unpacked;

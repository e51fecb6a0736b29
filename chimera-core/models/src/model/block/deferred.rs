//! The weight half of a block's backward pass, which may run later than its input half.

use crate::model::adapted::AdaptedOperands;
use crate::model::operands::Norm;

/// The weight gradients of a block that are still to be computed.
#[derive(Debug)]
pub(in crate::model) struct Deferred<T> {
    pub(in crate::model) norm_1: Norm<T>,
    pub(in crate::model) qkv: AdaptedOperands<T>,
    pub(in crate::model) out: AdaptedOperands<T>,
    pub(in crate::model) norm_2: Norm<T>,
    pub(in crate::model) up: AdaptedOperands<T>,
    pub(in crate::model) down: AdaptedOperands<T>,
}

impl<T> Deferred<T> {
    pub(in crate::model) fn tensors(&self) -> impl Iterator<Item = &T> {
        let norms = [&self.norm_1, &self.norm_2].into_iter().flat_map(Norm::tensors);
        norms.chain(self.linears().into_iter().flat_map(AdaptedOperands::tensors))
    }

    /// Returns the operands of the linear layers, in the order of their tensors.
    pub(in crate::model) fn operands(&self) -> [[T; 2]; 4]
    where
        T: Clone,
    {
        self.linears().map(|layer| layer.linear.shown())
    }

    fn linears(&self) -> [&AdaptedOperands<T>; 4] {
        [&self.qkv, &self.out, &self.up, &self.down]
    }
}

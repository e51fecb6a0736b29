//! Stages with saved activations that can be moved or cut.

use super::Stage;
use crate::device::Result;

/// Reassembles saved activations from their tensors.
pub type Reassemble<T, S> = Box<dyn FnOnce(Vec<T>) -> Result<S> + Send>;

/// The tensors of saved activations, and a function that reassembles them.
pub type TakenApart<T, S> = (Vec<T>, Reassemble<T, S>);

/// A stage with saved activations that can be moved to another memory and back.
pub trait Movable: Stage {
    /// Takes saved activations apart into their tensors. Also returns a function that reassembles
    /// them, bit for bit. In between, the tensors may have been in another memory.
    fn take_apart(&self, saved: Self::Saved) -> Result<TakenApart<Self::Tensor, Self::Saved>>;
}

/// A stage with saved activations that can be cut by samples. For other stages the engine runs a
/// forward over several parts (as in backward halving and forward doubling) part by part.
pub trait Splittable: Stage {
    /// Cuts saved activations into `parts` with equal numbers of samples, in order.
    fn split_saved(&self, saved: Self::Saved, parts: usize) -> Result<Vec<Self::Saved>>;
}

/// Any [`Movable`] stage with the types of `S`.
pub type DynMovable<'s, S> = dyn Movable<
        Tensor = <S as Stage>::Tensor,
        Item = <S as Stage>::Item,
        Saved = <S as Stage>::Saved,
        Deferred = <S as Stage>::Deferred,
    > + 's;

/// Any [`Splittable`] stage with the types of `S`.
pub type DynSplittable<'s, S> = dyn Splittable<
        Tensor = <S as Stage>::Tensor,
        Item = <S as Stage>::Item,
        Saved = <S as Stage>::Saved,
        Deferred = <S as Stage>::Deferred,
    > + 's;

//! Stages whose saved activations can be moved or cut.

use super::Stage;
use crate::device::Result;

/// Puts saved activations together of their tensors.
pub type Reassemble<T, S> = Box<dyn FnOnce(Vec<T>) -> Result<S> + Send>;

/// The tensors of saved activations, and what puts them together again.
pub type TakenApart<T, S> = (Vec<T>, Reassemble<T, S>);

/// A stage whose saved activations can go to another memory and come back, as programs with moves need.
pub trait Movable: Stage {
    /// Returns the tensors of saved activations, and what puts saved activations together of such tensors again, to the
    /// bit. Between the two the tensors may have been in another memory.
    fn take_apart(&self, saved: Self::Saved) -> Result<TakenApart<Self::Tensor, Self::Saved>>;
}

/// A stage whose saved activations can be cut by samples. For a stage without this the engine runs a forward over several
/// parts, as of backward halving and forward doubling, part by part.
pub trait Splittable: Stage {
    /// Cuts saved activations into `parts` of equally many samples, in order.
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

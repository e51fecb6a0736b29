//! Saved activations, whole or as selected for recomputation.

use chimera_engine::device::{DeviceError, Result};
use chimera_engine::layers::Layers;
use chimera_engine::stage::TakenApart;

use super::parts::part;
use crate::model::config::Selection;

/// Saved activations of a stage, from which
/// [`Selective::select`](chimera_engine::stage::Selective::select) makes a selection.
#[derive(Debug)]
pub enum Kept<W, S> {
    /// Everything that the backward pass needs.
    Whole(W),
    /// The part from which the rest can be made.
    Selected(S),
}

/// The part of a block's saved activations that selective recomputation keeps.
#[derive(Debug)]
pub(crate) enum KeptBlock<W, S, T> {
    /// Everything, so that nothing is recomputed.
    Whole(W),
    /// The activations that are expensive to compute.
    Dear(S),
    /// Only the input.
    Input(T),
}

impl<W, S, T> KeptBlock<W, S, T> {
    /// Selects from the saved activations of each block of a stage.
    pub(crate) fn select(
        saved: Vec<W>,
        selection: Selection,
        dear: impl Fn(W) -> S,
        input: impl Fn(W) -> T,
    ) -> Vec<Self> {
        let n_inputs = selection.n_inputs(saved.len());
        let kept = |(nth, saved)| match selection {
            Selection::Dear => KeptBlock::Dear(dear(saved)),
            Selection::InputsOf(_) if nth < n_inputs => KeptBlock::Input(input(saved)),
            Selection::InputsOf(_) => KeptBlock::Whole(saved),
        };
        saved.into_iter().enumerate().map(kept).collect()
    }

    /// Restores the saved activations, bit by bit, from the expensive ones or from only the input.
    pub(crate) fn restore(
        self,
        from_dear: impl FnOnce(S) -> Result<W>,
        from_input: impl FnOnce(T) -> Result<W>,
    ) -> Result<W> {
        match self {
            KeptBlock::Whole(saved) => Ok(saved),
            KeptBlock::Dear(dear) => from_dear(dear),
            KeptBlock::Input(x) => from_input(x),
        }
    }
}

impl<W, S, T> Tensors for KeptBlock<W, S, T>
where
    W: Tensors<Tensor = T>,
    S: Tensors<Tensor = T>,
{
    type Tensor = T;
    type Of<U> = KeptBlock<W::Of<U>, S::Of<U>, U>;

    fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Self::Of<U>> {
        Ok(match self {
            KeptBlock::Whole(saved) => KeptBlock::Whole(saved.map(f)?),
            KeptBlock::Dear(dear) => KeptBlock::Dear(dear.map(f)?),
            KeptBlock::Input(x) => KeptBlock::Input(f(x)?),
        })
    }
}

/// A holder of tensors.
pub(crate) trait Tensors {
    type Tensor;
    /// This holder with values of type `U` instead of tensors.
    type Of<U>;

    /// Applies `f` to each tensor.
    fn map<U>(&self, f: impl FnMut(&Self::Tensor) -> Result<U>) -> Result<Self::Of<U>>;
}

impl<W: Tensors> Tensors for Option<W> {
    type Tensor = W::Tensor;
    type Of<U> = Option<W::Of<U>>;

    fn map<U>(&self, f: impl FnMut(&Self::Tensor) -> Result<U>) -> Result<Self::Of<U>> {
        self.as_ref().map(|held| held.map(f)).transpose()
    }
}

impl<W: Tensors> Tensors for Vec<W> {
    type Tensor = W::Tensor;
    type Of<U> = Vec<W::Of<U>>;

    fn map<U>(&self, mut f: impl FnMut(&Self::Tensor) -> Result<U>) -> Result<Self::Of<U>> {
        self.iter().map(|held| held.map(&mut f)).collect()
    }
}

/// Defines a holder from its parts, which hold tensors themselves, and from its own tensors.
macro_rules! tensors {
    ($(#[$about:meta])* $vis:vis $Holder:ident
     { $($part:ident: $Part:ty),* } { $($(#[$of_tensor:meta])* $tensor:ident),* }) => {
        $(#[$about])*
        #[derive(Debug)]
        $vis struct $Holder<T> {
            $(pub(super) $part: $Part,)*
            $($(#[$of_tensor])* pub(super) $tensor: T,)*
        }

        impl<T> $crate::model::block::kept::Tensors for $Holder<T> {
            type Tensor = T;
            type Of<U> = $Holder<U>;

            fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<$Holder<U>> {
                Ok($Holder {
                    $($part: $crate::model::block::kept::Tensors::map(&self.$part, &mut f)?,)*
                    $($tensor: f(&self.$tensor)?,)*
                })
            }
        }
    };
}
pub(crate) use tensors;

impl<W, S> Kept<W, S> {
    /// Returns the whole saved activations. The engine restores a selection before a backward pass,
    /// so the other variant is a bug.
    pub(crate) fn whole(self) -> W {
        match self {
            Kept::Whole(saved) => saved,
            Kept::Selected(_) => panic!("saved activations were selected and not restored"),
        }
    }

    /// Returns the selection, which is all that exists before it is restored.
    pub(crate) fn selected(self) -> S {
        match self {
            Kept::Selected(selected) => selected,
            Kept::Whole(_) => panic!("saved activations were not selected"),
        }
    }

    /// Splits whole saved activations into parts of equal size. Their tensors have the same number
    /// of rows for every sample.
    pub(crate) fn split<D: Layers>(self, device: &D, parts: usize) -> Result<Vec<Kept<W, S>>>
    where
        W: Tensors<Tensor = D::Tensor, Of<D::Tensor> = W>,
    {
        let saved = self.whole();
        let part = |n| saved.map(|tensor| part(device, tensor, n, parts)).map(Kept::Whole);
        (0..parts).map(part).collect()
    }

    /// Takes whole saved activations apart into their tensors and a function that joins them again.
    pub(crate) fn take_apart<T>(self) -> Result<TakenApart<T, Kept<W, S>>>
    where
        T: Clone,
        W: Tensors<Tensor = T, Of<()>: Tensors<Tensor = (), Of<T> = W> + Send + 'static>,
    {
        let mut tensors = Vec::new();
        let empty = self.whole().map(|tensor| {
            tensors.push(tensor.clone());
            Ok(())
        })?;
        let reassemble = move |tensors: Vec<T>| {
            let mut tensors = tensors.into_iter();
            let lacks =
                || DeviceError::Other("moved activations came back with too few tensors".into());
            empty.map(|()| tensors.next().ok_or_else(lacks)).map(Kept::Whole)
        };
        Ok((tensors, Box::new(reassemble)))
    }

    pub(crate) fn bytes<D: Layers>(&self, device: &D) -> u64
    where
        W: Tensors<Tensor = D::Tensor>,
        S: Tensors<Tensor = D::Tensor>,
    {
        let mut sum = 0;
        let add = |tensor: &D::Tensor| {
            sum += device.bytes(tensor);
            Ok(())
        };
        let added = match self {
            Kept::Whole(saved) => saved.map(add).map(drop),
            Kept::Selected(selected) => selected.map(add).map(drop),
        };
        let _ = added; // infallible, like the closure
        sum
    }
}

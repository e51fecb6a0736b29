//! Implements `Stage` for boxed stages.

use super::{
    DynBranched, DynMovable, DynSelective, DynSizes, DynSliced, DynSplittable, Micro, Output,
    Param, Stage,
};
use crate::device::Result;

impl<S: Stage + ?Sized> Stage for Box<S> {
    type Tensor = S::Tensor;
    type Item = S::Item;
    type Saved = S::Saved;
    type Deferred = S::Deferred;

    fn params(&self) -> &[Param] {
        (**self).params()
    }

    fn forward(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        x: Option<S::Tensor>,
    ) -> Result<(Output<S::Tensor>, S::Saved)> {
        (**self).forward(w, micro, x)
    }

    fn backward_input(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        saved: S::Saved,
        dy: S::Tensor,
    ) -> Result<(Option<S::Tensor>, S::Deferred)> {
        (**self).backward_input(w, micro, saved, dy)
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_, S::Item>,
        deferred: S::Deferred,
        into: &mut [S::Tensor],
    ) -> Result<()> {
        (**self).backward_weight(micro, deferred, into)
    }

    fn operands(&self, deferred: &S::Deferred) -> Vec<[S::Tensor; 2]> {
        (**self).operands(deferred)
    }

    fn needs_inputs(&self) -> bool {
        (**self).needs_inputs()
    }

    fn recompute(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        x: Option<S::Tensor>,
    ) -> Result<S::Saved> {
        (**self).recompute(w, micro, x)
    }

    fn branched(&self) -> Option<&DynBranched<'_, S>> {
        (**self).branched()
    }

    fn selective(&self) -> Option<&DynSelective<'_, S>> {
        (**self).selective()
    }

    fn sliced(&self) -> Option<&DynSliced<'_, S>> {
        (**self).sliced()
    }

    fn splittable(&self) -> Option<&DynSplittable<'_, S>> {
        (**self).splittable()
    }

    fn movable(&self) -> Option<&DynMovable<'_, S>> {
        (**self).movable()
    }

    fn sizes(&self) -> Option<&DynSizes<'_, S>> {
        (**self).sizes()
    }
}

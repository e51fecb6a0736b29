//! Stages of different types as one type.

use std::any::Any;

use super::{
    Branched, DynBranched, DynMovable, DynSelective, DynSizes, DynSliced, DynSplittable, Left,
    Micro, Movable, Output, Param, Selective, Sizes, Slice, SliceGradients, Sliced, Splittable,
    Stage, TakenApart,
};
use crate::device::Result;

/// A stage of any type with tensors `T` and samples of `I`.
pub type AnyStage<T, I = u32> =
    Box<dyn Stage<Tensor = T, Item = I, Saved = AnyValue, Deferred = AnyValue> + Sync>;

/// Saved activations or deferred weight work of some stage.
pub type AnyValue = Box<dyn Any + Send>;

/// Erases the type of a stage, so that one model can have stages of several types.
pub fn erase<S>(stage: S) -> AnyStage<S::Tensor, S::Item>
where
    S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static> + Sync + 'static,
{
    Box::new(Erased(stage))
}

struct Erased<S>(S);

/// Downcasts a value, which the engine got from the same stage: other types are a bug.
fn own<T: 'static>(value: AnyValue) -> T {
    match value.downcast() {
        Ok(value) => *value,
        Err(_) => panic!("a stage was given what another stage made"),
    }
}

fn own_ref<T: 'static>(value: &AnyValue) -> &T {
    value.downcast_ref().unwrap_or_else(|| panic!("a stage was given what another stage made"))
}

/// Unwraps an ability. An erased stage is asked only for abilities that its inner stage has.
fn asked<T: ?Sized>(ability: Option<&T>) -> &T {
    ability.unwrap_or_else(|| panic!("a stage was asked for what it does not have"))
}

impl<S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static>> Stage for Erased<S> {
    type Tensor = S::Tensor;
    type Item = S::Item;
    type Saved = AnyValue;
    type Deferred = AnyValue;

    fn params(&self) -> &[Param] {
        self.0.params()
    }

    fn forward(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        x: Option<S::Tensor>,
    ) -> Result<(Output<S::Tensor>, AnyValue)> {
        let (output, saved) = self.0.forward(w, micro, x)?;
        Ok((output, Box::new(saved)))
    }

    fn backward_input(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        saved: AnyValue,
        dy: S::Tensor,
    ) -> Result<(Option<S::Tensor>, AnyValue)> {
        let (dx, deferred) = self.0.backward_input(w, micro, own(saved), dy)?;
        Ok((dx, Box::new(deferred)))
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_, S::Item>,
        deferred: AnyValue,
        into: &mut [S::Tensor],
    ) -> Result<()> {
        self.0.backward_weight(micro, own(deferred), into)
    }

    fn operands(&self, deferred: &AnyValue) -> Vec<[S::Tensor; 2]> {
        self.0.operands(own_ref(deferred))
    }

    fn needs_inputs(&self) -> bool {
        self.0.needs_inputs()
    }

    fn recompute(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        x: Option<S::Tensor>,
    ) -> Result<AnyValue> {
        Ok(Box::new(self.0.recompute(w, micro, x)?))
    }

    fn branched(&self) -> Option<&DynBranched<'_, Self>> {
        self.0.branched().map(|_| self as _)
    }

    fn selective(&self) -> Option<&DynSelective<'_, Self>> {
        self.0.selective().map(|_| self as _)
    }

    fn sliced(&self) -> Option<&DynSliced<'_, Self>> {
        self.0.sliced().map(|_| self as _)
    }

    fn splittable(&self) -> Option<&DynSplittable<'_, Self>> {
        self.0.splittable().map(|_| self as _)
    }

    fn movable(&self) -> Option<&DynMovable<'_, Self>> {
        self.0.movable().map(|_| self as _)
    }

    fn sizes(&self) -> Option<&DynSizes<'_, Self>> {
        self.0.sizes().map(|_| self as _)
    }
}

impl<S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static>> Branched for Erased<S> {
    fn forward_edges(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        inputs: Vec<S::Tensor>,
    ) -> Result<(Vec<Output<S::Tensor>>, AnyValue)> {
        let (outputs, saved) = asked(self.0.branched()).forward_edges(w, micro, inputs)?;
        Ok((outputs, Box::new(saved)))
    }

    fn backward_input_edges(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        saved: AnyValue,
        gradients: Vec<S::Tensor>,
    ) -> Result<(Vec<S::Tensor>, AnyValue)> {
        let (dx, deferred) =
            asked(self.0.branched()).backward_input_edges(w, micro, own(saved), gradients)?;
        Ok((dx, Box::new(deferred)))
    }

    fn recompute_edges(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        inputs: Vec<S::Tensor>,
    ) -> Result<AnyValue> {
        Ok(Box::new(asked(self.0.branched()).recompute_edges(w, micro, inputs)?))
    }

    fn has_output_per_edge(&self) -> bool {
        asked(self.0.branched()).has_output_per_edge()
    }
}

impl<S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static>> Selective for Erased<S> {
    fn select(&self, saved: AnyValue) -> AnyValue {
        Box::new(asked(self.0.selective()).select(own(saved)))
    }

    fn restore(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        selected: AnyValue,
    ) -> Result<AnyValue> {
        Ok(Box::new(asked(self.0.selective()).restore(w, micro, own(selected))?))
    }

    fn restore_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        selected: AnyValue,
    ) -> Result<AnyValue> {
        Ok(Box::new(asked(self.0.selective()).restore_slice(w, micro, slice, own(selected))?))
    }
}

impl<S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static>> Sliced for Erased<S> {
    fn forward_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        x: Option<S::Tensor>,
    ) -> Result<(Output<S::Tensor>, AnyValue, Left<S::Tensor>)> {
        let (output, saved, left) = asked(self.0.sliced()).forward_slice(w, micro, slice, x)?;
        Ok((output, Box::new(saved), left))
    }

    fn recompute_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        x: Option<S::Tensor>,
    ) -> Result<AnyValue> {
        Ok(Box::new(asked(self.0.sliced()).recompute_slice(w, micro, slice, x)?))
    }

    fn backward_input_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        saved: AnyValue,
        gradients: SliceGradients<S::Tensor>,
    ) -> Result<(Option<S::Tensor>, AnyValue, Vec<Left<S::Tensor>>)> {
        let (dx, deferred, d_past) =
            asked(self.0.sliced()).backward_input_slice(w, micro, slice, own(saved), gradients)?;
        Ok((dx, Box::new(deferred), d_past))
    }
}

impl<S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static>> Splittable for Erased<S> {
    fn split_saved(&self, saved: AnyValue, parts: usize) -> Result<Vec<AnyValue>> {
        let parts = asked(self.0.splittable()).split_saved(own(saved), parts)?;
        Ok(parts.into_iter().map(|part| Box::new(part) as AnyValue).collect())
    }
}

impl<S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static>> Movable for Erased<S> {
    fn take_apart(&self, saved: AnyValue) -> Result<TakenApart<S::Tensor, AnyValue>> {
        let (tensors, reassemble) = asked(self.0.movable()).take_apart(own(saved))?;
        let erased = |tensors| Ok(Box::new(reassemble(tensors)?) as AnyValue);
        Ok((tensors, Box::new(erased)))
    }
}

impl<S: Stage<Tensor: 'static, Saved: 'static, Deferred: 'static>> Sizes for Erased<S> {
    fn input_shape(&self, samples: usize) -> Option<Vec<usize>> {
        asked(self.0.sizes()).input_shape(samples)
    }

    fn output_shape(&self, samples: usize) -> Option<Vec<usize>> {
        asked(self.0.sizes()).output_shape(samples)
    }

    fn saved_bytes(&self, saved: &AnyValue) -> u64 {
        asked(self.0.sizes()).saved_bytes(own_ref(saved))
    }

    fn deferred_bytes(&self, deferred: &AnyValue) -> u64 {
        asked(self.0.sizes()).deferred_bytes(own_ref(deferred))
    }
}

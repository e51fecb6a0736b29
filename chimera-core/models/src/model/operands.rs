//! The operands of the weight half of a backward pass, layer by layer. The accumulator of a frozen
//! tensor is empty, and gets nothing.

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Layout, llama_layers};
use chimera_engine::stage::Param;

/// The operands of a norm's weight gradient.
#[derive(Debug)]
pub(super) struct Norm<T> {
    pub(super) dy: T,
    pub(super) x: T,
    pub(super) stats: T,
}

/// The operands of a linear layer's weight gradient.
#[derive(Debug)]
pub(super) struct Linear<T> {
    pub(super) x: T,
    pub(super) dy: T,
}

impl<T> Norm<T> {
    pub(super) fn tensors(&self) -> [&T; 3] {
        [&self.dy, &self.x, &self.stats]
    }

    /// Adds the gradients of a layer norm's gain and bias, and frees the operands at once.
    pub(super) fn add<D: Layers<Tensor = T>>(
        self,
        device: &D,
        d_gain: &mut T,
        d_bias: &mut T,
    ) -> Result<()> {
        if [&*d_gain, &*d_bias].into_iter().all(|into| is_frozen(device, into)) {
            return Ok(());
        }
        let (shape, mut scratch) = (vec![features(device, &self.x)], [None, None]);
        let [of_gain, of_bias] = &mut scratch;
        let d_gain = or_scratch(device, d_gain, of_gain, &shape)?;
        let d_bias = or_scratch(device, d_bias, of_bias, &shape)?;
        device.layer_norm_dw(&self.dy, &self.x, &self.stats, d_gain, d_bias)
    }

    /// Adds the gradient of an RMS norm's gain, and frees the operands at once.
    pub(super) fn add_rms<D: Layers<Tensor = T>>(self, device: &D, d_gain: &mut T) -> Result<()> {
        if is_frozen(device, d_gain) {
            return Ok(());
        }
        llama_layers(device)?.rms_norm_dw(&self.dy, &self.x, &self.stats, d_gain)
    }
}

impl<T> Linear<T> {
    pub(super) fn tensors(&self) -> [&T; 2] {
        [&self.x, &self.dy]
    }

    /// Returns copies, which share the memory of the operands.
    pub(super) fn shown(&self) -> [T; 2]
    where
        T: Clone,
    {
        [self.x.clone(), self.dy.clone()]
    }

    /// Adds the gradients of the matrix and a bias, and frees the operands at once.
    pub(super) fn add<D: Layers<Tensor = T>>(
        self,
        device: &D,
        layout: Layout,
        dw: &mut T,
        d_bias: Option<&mut T>,
    ) -> Result<()> {
        let d_bias = d_bias.filter(|d_bias| !is_frozen(device, d_bias));
        if d_bias.is_none() && is_frozen(device, dw) {
            return Ok(());
        }
        let (inputs, outputs) = (features(device, &self.x), features(device, &self.dy));
        let shape = match layout {
            Layout::InOut => [inputs, outputs],
            Layout::OutIn => [outputs, inputs],
        };
        let mut scratch = None;
        let dw = or_scratch(device, dw, &mut scratch, &shape)?;
        device.linear_dw(&self.x, &self.dy, layout, dw, d_bias)
    }
}

/// Adds the gradients of two embedding tables, `params`, of ids in samples of `context` ids.
pub(super) fn add_embedding<D: Layers>(
    device: &D,
    (ids, context): (&[u32], usize),
    dy: &D::Tensor,
    params: &[Param],
    [tokens, positions]: [&mut D::Tensor; 2],
) -> Result<()> {
    if params.iter().all(|param| param.frozen) {
        return Ok(());
    }
    let mut scratch = [None, None];
    let [of_tokens, of_positions] = &mut scratch;
    let tokens = or_scratch(device, tokens, of_tokens, &params[0].shape)?;
    let positions = or_scratch(device, positions, of_positions, &params[1].shape)?;
    device.embedding_dw(ids, context, dy, tokens, positions)
}

/// Returns true if an accumulator is that of a frozen tensor.
pub(super) fn is_frozen<D: Layers>(device: &D, into: &D::Tensor) -> bool {
    device.shape(into) == [0]
}

/// Returns an accumulator, or for a frozen tensor memory that is dropped afterwards: some layers
/// only have a function for the gradients of two tensors.
fn or_scratch<'t, D: Layers>(
    device: &D,
    into: &'t mut D::Tensor,
    scratch: &'t mut Option<D::Tensor>,
    shape: &[usize],
) -> Result<&'t mut D::Tensor> {
    if is_frozen(device, into) { Ok(scratch.insert(device.zeros(shape)?)) } else { Ok(into) }
}

fn features<D: Layers>(device: &D, rows: &D::Tensor) -> usize {
    device.shape(rows).last().copied().unwrap_or(0)
}

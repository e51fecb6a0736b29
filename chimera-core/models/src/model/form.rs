//! The differences between the decoders in the table of models.

use chimera_engine::device::Result;
use chimera_engine::layers::{Activation, Layers, Layout, Mask, llama_layers};

use super::adapted::{AdaptedLinear, AdapterDropout, Adapters};
use super::operands::Norm;
use super::rope::RopeScaling;

/// The differences between decoders, other than their sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecoderForm {
    /// Heads of keys and values.
    pub(super) kv_heads: usize,
    /// The mask that decides which tokens a token sees.
    pub(super) mask: Mask<'static>,
    /// The form of all norms.
    pub(super) norm: NormForm,
    /// The memory layout of the blocks' matrices.
    pub(super) layout: Layout,
    /// Whether queries, keys and values have biases.
    pub(super) qkv_bias: bool,
    /// Whether the other products have biases.
    pub(super) bias: bool,
    /// The activation function between the products of the MLP.
    pub(super) activation: Activation,
    /// Whether the activation gates a second vector of the same size.
    pub(super) is_gated: bool,
    /// Base and scaling of rotary positions; `None` for a learned position table.
    pub(super) rotary: Option<(f64, RopeScaling)>,
    /// The adapters of each layer of a block.
    pub(super) adapters: [Adapters; LAYERS],
}

/// A norm of the features of a row, with its epsilon.
#[derive(Clone, Copy, Debug)]
pub(super) enum NormForm {
    /// A layer norm, with a gain and a bias.
    Layer(f64),
    /// An RMS norm, with a gain.
    Rms(f64),
}

/// Layers of a block with tensors: norm, qkv, projection; norm, into the MLP, out of it.
pub(super) const LAYERS: usize = 6;
/// Places of the linear layers among them.
pub(super) const QKV: usize = 1;
pub(super) const OUT: usize = 2;
pub(super) const UP: usize = 4;
pub(super) const DOWN: usize = 5;

impl DecoderForm {
    /// Returns the number of tensors per layer of a block: a product may have a bias.
    fn lens(&self) -> [usize; LAYERS] {
        let (norm, linear) = (self.norm.len(), 1 + usize::from(self.bias));
        let mut lens = [norm, 1 + usize::from(self.qkv_bias), linear, norm, linear, linear];
        lens.iter_mut()
            .zip(&self.adapters)
            .for_each(|(len, adapters)| *len += adapters.n_tensors());
        lens
    }

    /// Returns the linear layer in a place of a block.
    pub(super) fn linear<'b, D: Layers>(
        &self,
        device: &'b D,
        layer: usize,
        scale: Option<&'b D::Tensor>,
        dropout: Option<AdapterDropout>,
    ) -> AdaptedLinear<'b, D> {
        let has_bias = if layer == QKV { self.qkv_bias } else { self.bias };
        let (layout, adapters) = (self.layout, self.adapters[layer]);
        AdaptedLinear { device, layout, has_bias, adapters, scale, dropout }
    }

    pub(super) fn block_len(&self) -> usize {
        self.lens().iter().sum()
    }

    /// Returns the number of tables: of tokens, and of positions if they are learned.
    pub(super) fn embedding_len(&self) -> usize {
        1 + usize::from(self.rotary.is_none())
    }

    /// Returns the tensors of each layer of a block.
    pub(super) fn layers<'w, T>(&self, mut block: &'w [T]) -> [&'w [T]; LAYERS] {
        self.lens().map(|len| block.split_off(..len).expect("the tensors of a block"))
    }

    /// Returns the tensors of each layer of a block, mutably.
    pub(super) fn layers_mut<'w, T>(&self, mut block: &'w mut [T]) -> [&'w mut [T]; LAYERS] {
        self.lens().map(|len| block.split_off_mut(..len).expect("the tensors of a block"))
    }
}

impl NormForm {
    pub(super) fn len(self) -> usize {
        match self {
            NormForm::Layer(_) => 2,
            NormForm::Rms(_) => 1,
        }
    }

    /// Returns the output, and the statistics that the backward pass needs.
    pub(super) fn forward<D: Layers>(
        self,
        device: &D,
        x: &D::Tensor,
        w: &[D::Tensor],
    ) -> Result<(D::Tensor, D::Tensor)> {
        match self {
            NormForm::Layer(epsilon) => device.layer_norm(x, &w[0], &w[1], epsilon),
            NormForm::Rms(epsilon) => llama_layers(device)?.rms_norm(x, &w[0], epsilon),
        }
    }

    /// Returns the gradient of the input, plus `residual`.
    pub(super) fn dx<D: Layers>(
        self,
        device: &D,
        operands: &Norm<D::Tensor>,
        w: &[D::Tensor],
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        let Norm { dy, x, stats } = operands;
        match self {
            NormForm::Layer(_) => device.layer_norm_dx(dy, x, stats, &w[0], residual),
            NormForm::Rms(_) => llama_layers(device)?.rms_norm_dx(dy, x, stats, &w[0], residual),
        }
    }

    /// Adds the gradients of its tensors to `into`, and frees the operands at once.
    pub(super) fn add_dw<D: Layers>(
        self,
        device: &D,
        operands: Norm<D::Tensor>,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        match (self, into) {
            (NormForm::Layer(_), [gain, bias, ..]) => operands.add(device, gain, bias),
            (NormForm::Rms(_), [gain, ..]) => operands.add_rms(device, gain),
            _ => unreachable!("a norm has its tensors"),
        }
    }
}

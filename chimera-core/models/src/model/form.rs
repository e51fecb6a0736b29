//! What tells the decoders of the table of models apart.

use chimera_engine::device::Result;
use chimera_engine::layers::{Activation, Layers, Layout, Mask, llama_layers};

use super::operands::Norm;
use super::rope::RopeScaling;

/// What tells decoders apart, beside their sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecoderForm {
    /// Heads of keys and values.
    pub(super) kv_heads: usize,
    /// Which tokens a token sees.
    pub(super) mask: Mask<'static>,
    /// All norms.
    pub(super) norm: NormForm,
    /// How the matrices of blocks lie in memory.
    pub(super) layout: Layout,
    /// Whether queries, keys and values have biases.
    pub(super) qkv_bias: bool,
    /// Whether the other products have biases.
    pub(super) bias: bool,
    /// Between the products of the MLP.
    pub(super) activation: Activation,
    /// Whether the activation is the gate of as many features beside it.
    pub(super) is_gated: bool,
    /// Base and scaling of rotary positions; without them a table of positions is learned.
    pub(super) rotary: Option<(f64, RopeScaling)>,
}

/// A norm of the features of a row, and what it adds to their variance or mean square.
#[derive(Clone, Copy, Debug)]
pub(super) enum NormForm {
    /// A layer norm: a gain and a bias.
    Layer(f64),
    /// An RMS norm: a gain.
    Rms(f64),
}

/// Layers of a block that have tensors: norm, queries with keys and values, projection; norm, into the MLP, out of it.
pub(super) const LAYERS: usize = 6;

impl DecoderForm {
    /// Tensors of each layer of a block: a product has its matrix, then its bias if there is one.
    fn lens(&self) -> [usize; LAYERS] {
        let (norm, linear) = (self.norm.len(), 1 + usize::from(self.bias));
        [norm, 1 + usize::from(self.qkv_bias), linear, norm, linear, linear]
    }

    /// Tensors of a block.
    pub(super) fn block_len(&self) -> usize {
        self.lens().iter().sum()
    }

    /// Tables of the embedding: of tokens, and of positions if they are learned.
    pub(super) fn embedding_len(&self) -> usize {
        1 + usize::from(self.rotary.is_none())
    }

    /// The tensors of each layer of a block.
    pub(super) fn layers<'w, T>(&self, mut block: &'w [T]) -> [&'w [T]; LAYERS] {
        self.lens().map(|len| block.split_off(..len).expect("the tensors of a block"))
    }

    /// The tensors of each layer of a block, to add to.
    pub(super) fn layers_mut<'w, T>(&self, mut block: &'w mut [T]) -> [&'w mut [T]; LAYERS] {
        self.lens().map(|len| block.split_off_mut(..len).expect("the tensors of a block"))
    }
}

impl NormForm {
    /// Tensors of the norm.
    pub(super) fn len(self) -> usize {
        match self {
            NormForm::Layer(_) => 2,
            NormForm::Rms(_) => 1,
        }
    }

    /// The output, and the statistics that the backward pass needs.
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

    /// The gradient of the input, plus `residual`.
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

    /// Adds the gradients of its tensors to `into`; the operands are given back at once.
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

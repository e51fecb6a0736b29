//! A piece of a candle model as a stage.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::VarBuilder;
use candle_nn::init::{Init as CandleInit, NormalOrUniform};
use candle_nn::var_builder::SimpleBackend;
use chimera_core::device::Result;
use chimera_core::stage::{Autograd, Differentiable, Init, Micro, Output, Param};

use crate::Candle;

/// A piece of a model: some of its layers, as an ordinary candle module.
pub trait Piece: Send {
    /// One number of a sample.
    type Item: Copy + Send + Sync + 'static;
    /// The layers.
    type Module;

    /// Builds the layers from the tensors that `vb` returns by name, the same ones at each call.
    /// Layers ask for the initial values of their tensors, which are drawn from the training's seed
    /// and the name. A tensor has weight decay if it is a matrix. No layer may write into these
    /// tensors, as batch norm does into its running statistics: they are copies, so such a training
    /// is refused.
    fn build(&self, vb: VarBuilder<'_>) -> candle_core::Result<Self::Module>;

    /// Runs the layers on `x`, the activation of the piece before, or on the inputs of the samples.
    /// Everything it draws at random must follow from `micro`, because recomputation runs it again.
    /// The dropout of `candle-nn` draws anew, so a piece with it must not be recomputed. That
    /// dropout also asks whether this is training: pass it [`Micro::training`].
    ///
    /// All ops must have a backward in candle. Replacements for fused ops without one are slower:
    ///
    /// | without a backward | replacement |
    /// |---|---|
    /// | `LayerNorm::forward`, `ops::layer_norm` | `ops::layer_norm_slow` |
    /// | `RmsNorm::forward`, `ops::rms_norm` | `RmsNorm::forward_diff`, `ops::rms_norm_slow` |
    /// | `ops::softmax_last_dim` | `ops::softmax` |
    /// | `rotary_emb::rope`, `rope_i`, `rope_thd` | `rotary_emb::rope_slow`, `rope_i_slow` |
    /// | `ops::sdpa` | products and `ops::softmax` |
    ///
    /// It is an error if no gradient comes back to `x`, or to any of the piece's parameters.
    fn forward(
        &self,
        module: &Self::Module,
        micro: &Micro<'_, Self::Item>,
        x: Option<&Tensor>,
    ) -> candle_core::Result<Ran>;
}

/// The result of a piece.
#[derive(Clone, Debug)]
pub enum Ran {
    /// The input of the next piece; from the last one, without targets, the model's output. Its
    /// first dimension counts samples, or rows of samples.
    Activation(Tensor),
    /// From the last piece, given targets: the summed loss times [`loss_scale`](Micro::loss_scale).
    Loss(Tensor),
}

/// The stage of a [`Piece`].
pub type CandleStage<P> = Autograd<Differentiated<P>, Candle>;

/// Makes a stage of a piece, on a device.
///
/// # Errors
/// If the piece cannot be built, or asks for a tensor whose initial value cannot be drawn.
pub fn stage<P: Piece>(candle: &Candle, piece: P) -> candle_core::Result<CandleStage<P>> {
    let asked = Asked::default();
    let vb = VarBuilder::from_backend(
        Box::new(asked.clone()),
        candle.tensor_dtype(),
        candle.device().clone(),
    );
    piece.build(vb)?;
    let params = std::mem::take(&mut *asked.0.lock().unwrap_or_else(PoisonError::into_inner));
    let (is_checked, device) = (AtomicBool::new(false), candle.clone());
    Ok(Autograd::new(Differentiated { piece, params, candle: device, is_checked }, candle.clone()))
}

/// A piece that candle differentiates.
#[derive(Debug)]
pub struct Differentiated<P> {
    piece: P,
    params: Vec<Param>,
    candle: Candle,
    /// Set once the piece is known to leave its weights as they are.
    is_checked: AtomicBool,
}

/// Candle's graph of a forward pass.
#[derive(Debug)]
pub struct Graph {
    weights: Vec<Var>,
    x: Option<Var>,
    /// The loss if `is_loss`, otherwise the output.
    y: Tensor,
    is_loss: bool,
}

impl<P: Piece> Differentiated<P> {
    fn run(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, P::Item>,
        x: Option<Tensor>,
    ) -> candle_core::Result<(Output<Tensor>, Graph)> {
        // Copies: the engine writes into weights in place, and the recorded graph must not change.
        let weights: Vec<Var> =
            w.iter().map(Var::from_tensor).collect::<candle_core::Result<_>>()?;
        let x = x.as_ref().map(Var::from_tensor).transpose()?;
        let names = self.params.iter().map(|param| param.name.clone());
        let by_name = names.zip(weights.iter().map(|var| var.as_tensor().clone())).collect();
        let (dtype, device) = (self.candle.tensor_dtype(), self.candle.device());
        let module = self.piece.build(VarBuilder::from_tensors(by_name, dtype, device))?;
        let ran = self.piece.forward(&module, micro, x.as_ref().map(Var::as_tensor))?;
        if micro.training && !self.is_checked.swap(true, Ordering::Relaxed) {
            self.check_unwritten(w, &weights)?;
        }
        Ok(match ran {
            Ran::Activation(y) => {
                let output = Output::Activation(y.detach());
                (output, Graph { weights, x, y, is_loss: false })
            }
            Ran::Loss(y) => {
                let loss = y.detach();
                // The engine refuses any other loss, and names its stage.
                let loss = if loss.elem_count() == 1 { loss.reshape(1)? } else { loss };
                let grad = loss.ones_like()?;
                (Output::Loss { loss, grad }, Graph { weights, x, y, is_loss: true })
            }
        })
    }

    fn differentiate(
        &self,
        Graph { weights, x, y, is_loss }: Graph,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Vec<Tensor>)> {
        let mut gradients =
            if is_loss { y.backward()? } else { (&y * dy)?.sum_all()?.backward()? };
        // Detached from the tensors that made it. They may be the whole graph, and the stage before
        // would differentiate them too.
        let mut of = |var: &Var| gradients.remove(var).map(|gradient| gradient.detach());
        let dx = x.as_ref().map(|x| (x, of(x)));
        let dw: Vec<(&Var, Option<Tensor>)> = weights.iter().map(|w| (w, of(w))).collect();
        let is_cut_off = matches!(&dx, Some((x, None)) if x.dtype().is_float()); // ids have no gradient
        let is_untrained = !dw.is_empty() && dw.iter().all(|(_, gradient)| gradient.is_none());
        // The loss of a micro-batch without a target that counts may be a constant.
        if (is_cut_off || is_untrained) && !(is_loss && is_zero(&y)?) {
            let what =
                if is_cut_off { "the activation of the stage before" } else { "any parameter" };
            candle_core::bail!(
                "no gradient comes back to {what}: an op on the way to the output has no backward in candle, or is a \
                 detach. Fused ops have none: instead of LayerNorm::forward use candle_nn::ops::layer_norm_slow, of \
                 RmsNorm::forward its forward_diff or rms_norm_slow, of softmax_last_dim softmax, of rope rope_slow, \
                 of rope_i rope_i_slow. Where none is wanted of x, add (x * x.zeros_like()?)?.sum_all()? to the \
                 output: its gradient is 0"
            );
        }
        // A micro-batch may not use some weights, such as those of layers that it skips.
        let or_zeros = |(var, gradient): (&Var, Option<Tensor>)| match gradient {
            Some(gradient) => Ok(gradient),
            None => var.zeros_like(),
        };
        let dx = dx.map(or_zeros).transpose()?;
        Ok((dx, dw.into_iter().map(or_zeros).collect::<candle_core::Result<_>>()?))
    }

    /// Refuses a piece that wrote into its weights, which are copies, so the changes are lost.
    fn check_unwritten(&self, given: &[Tensor], weights: &[Var]) -> candle_core::Result<()> {
        let each = self.params.iter().zip(given.iter().zip(weights));
        for (Param { name, .. }, (given, weight)) in each.filter(|(_, (w, _))| w.elem_count() > 0) {
            if !is_zero(&given.ne(weight.as_tensor())?)? {
                candle_core::bail!(
                    "the piece writes into its weight `{name}`, as batch norm does into its running statistics: \
                     stages keep nothing between two calls, and its changes are lost. Use a norm without statistics \
                     of its own, such as layer_norm_slow or group_norm, or run the layer as in an evaluation"
                );
            }
        }
        Ok(())
    }
}

/// Returns true if all elements are 0.
fn is_zero(x: &Tensor) -> candle_core::Result<bool> {
    Ok(x.detach().to_dtype(DType::F32)?.abs()?.sum_all()?.to_scalar::<f32>()? == 0.0)
}

impl<P: Piece> Differentiable for Differentiated<P> {
    type Tensor = Tensor;
    type Item = P::Item;
    type Graph = Graph;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, P::Item>,
        x: Option<Tensor>,
    ) -> Result<(Output<Tensor>, Graph)> {
        self.candle.ran("forward", self.run(w, micro, x))
    }

    /// Returns the bytes that candle recorded; of tensors that share memory the largest counts.
    fn graph_bytes(&self, Graph { x, y, .. }: &Graph) -> u64 {
        let mut by_memory: HashMap<usize, usize> = HashMap::new();
        for tensor in y.sorted_nodes().into_iter().chain(x.iter().map(Var::as_tensor)) {
            let (storage, layout) = tensor.storage_and_layout();
            let extents = layout.dims().iter().zip(layout.stride());
            // Along a stride of 0 all elements are one.
            let n: usize = extents.map(|(n, stride)| if *stride == 0 { 1 } else { *n }).product();
            let bytes = n * tensor.dtype().size_in_bytes();
            let most = by_memory.entry(std::ptr::from_ref(&*storage).addr()).or_default();
            *most = bytes.max(*most);
        }
        by_memory.values().map(|bytes| *bytes as u64).sum()
    }

    fn vjp(&self, graph: Graph, dy: Tensor) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        self.candle.ran("backward", self.differentiate(graph, &dy))
    }
}

/// Records the tensors that a module asks for, and returns zeros.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Param>>>);

impl SimpleBackend for Asked {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: CandleInit,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.iter().all(|param| param.name != name) {
            asked.push(Param::new(name, shape.dims(), begin(name, &shape, init)?));
        }
        Tensor::zeros(shape, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        candle_core::bail!("the shape of {name} is not given: ask for it with get")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().any(|param| param.name == name)
    }
}

/// Returns the initial value of the tensor `name` from candle's description.
fn begin(name: &str, shape: &Shape, init: CandleInit) -> candle_core::Result<Init> {
    Ok(match init {
        CandleInit::Const(0.0) => Init::Zeros,
        CandleInit::Const(1.0) => Init::Ones,
        CandleInit::Const(value) => Init::Values(vec![value as f32; shape.elem_count()].into()),
        CandleInit::Randn { mean: 0.0, stdev } => Init::Normal(stdev),
        CandleInit::Uniform { lo, up } if lo == -up => Init::Uniform(up),
        CandleInit::Kaiming { dist, fan, non_linearity } => {
            let deviation = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Normal => Init::Normal(deviation),
                NormalOrUniform::Uniform => Init::Uniform(3f64.sqrt() * deviation),
            }
        }
        other => candle_core::bail!(
            "{name} cannot begin with {other:?}: choose zeros, ones, a normal distribution of mean \
             0, or a uniform one about 0"
        ),
    })
}

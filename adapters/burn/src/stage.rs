//! A piece of a burn model as a stage.

use std::sync::Arc;

use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param as BurnParam};
use burn::tensor::Tensor;
use chimera_core::device::{Device as _, DeviceError, Result};
use chimera_core::stage::{Autograd, Differentiable, Init, Micro, Output, Param};

use crate::{Array, Burn};

/// A piece of a model: a burn module, and the code that runs it.
pub trait Piece: Module {
    /// One number of a sample.
    type Item: Copy + Send + Sync + 'static;

    /// Runs the module on `x`, the activation of the piece before, or on the inputs of the samples,
    /// which are tensors of `burn`. Everything it draws at random must follow from `micro`, because
    /// recomputation runs it again. burn's own dropout draws anew, so a piece with it must not be
    /// recomputed.
    fn run(&self, burn: &Burn, micro: &Micro<'_, Self::Item>, x: Option<&Array>) -> Ran;
}

/// The result of a piece.
#[derive(Clone, Debug)]
pub enum Ran {
    /// The input of the next piece; from the last one, without targets, the model's output. Its
    /// first dimension counts samples, or rows of samples.
    Activation(Array),
    /// From the last piece, given targets: the summed loss times [`loss_scale`](Micro::loss_scale).
    Loss(Tensor<1>),
}

/// The stage of a [`Piece`].
pub type BurnStage<P> = Autograd<Differentiated<P>, Burn>;

/// Makes a stage of a piece, on a device.
///
/// Its parameters are the floating-point tensors in the module, named by their paths. A tensor has
/// weight decay if it is a matrix. Paths must be unique in the model. The simplest stage is the
/// whole model without the layers of other stages: in a `Vec<Option<Layer>>` each layer keeps its
/// index. Weights begin as they are in the module, so all replicas of a stage must be made of
/// clones of one module, or of modules with equal numbers.
///
/// A parameter that burn would not train, such as those of a module after `no_grad` or `freeze`, is
/// [frozen](Param::frozen): it is saved with the others, and keeps its initial value.
///
/// # Errors
/// If a batch norm would update its running statistics: stages keep no state between two calls.
pub fn stage<P: Piece>(burn: &Burn, piece: P) -> Result<BurnStage<P>> {
    let mut found = Found::default();
    piece.visit(&mut found);
    if let Some(name) = found.running {
        return Err(DeviceError::other(format!(
            "`{name}` is updated in every forward pass, by the module itself, but a stage keeps nothing between two \
             calls: replicas would differ, and checkpoints would lose it. Use a norm without statistics of its own, \
             such as LayerNorm or GroupNorm, or freeze the batch norm (Module::freeze), which then stays as it is"
        )));
    }
    let differentiated = Differentiated { piece, params: found.params, burn: burn.clone() };
    Ok(Autograd::new(differentiated, burn.clone()))
}

/// The parameters of a module.
#[derive(Default)]
struct Found {
    path: Vec<String>,
    params: Vec<Param>,
    /// Paths of layers that behave differently in training and in evaluation.
    in_training: Vec<Vec<String>>,
    /// A running statistic that training updates.
    running: Option<String>,
}

impl ModuleVisitor for Found {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_flag(&mut self, flag: &BurnParam<Flag>) {
        if let Some((name, layer)) = self.path.split_last()
            && name == "training"
            && flag.is_enabled()
        {
            self.in_training.push(layer.to_vec());
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &BurnParam<Tensor<D>>) {
        if let Some((name, layer)) = self.path.split_last()
            && ["running_mean", "running_var"].contains(&name.as_str())
            && self.in_training.iter().any(|known| known == layer)
        {
            self.running.get_or_insert(self.path.join("."));
        }
        let values: Vec<f32> = param.val().into_data().iter().collect();
        let shape = param.val().dims().to_vec();
        let init = Init::Values(Arc::from(values));
        // On a device without autodiff a tensor does not show whether it is to be trained.
        let frozen = !param.valid().train().is_require_grad();
        self.params.push(Param { frozen, ..Param::new(self.path.join("."), shape, init) });
    }
}

/// Replaces a module's own weights by the engine's.
struct Given<'a>(std::slice::Iter<'a, Array>);

impl ModuleMapper for Given<'_> {
    fn map_float<const D: usize>(&mut self, param: BurnParam<Tensor<D>>) -> BurnParam<Tensor<D>> {
        match self.0.next() {
            Some(weight) => param.map(|_| weight.tensor()),
            None => param,
        }
    }
}

/// A piece that burn differentiates.
#[derive(Debug)]
pub struct Differentiated<P> {
    piece: P,
    params: Vec<Param>,
    burn: Burn,
}

/// The autodiff graph of a forward pass.
#[derive(Debug)]
pub struct Graph {
    weights: Vec<Array>,
    x: Option<Array>,
    /// The output, or the loss.
    y: Tensor<1>,
}

impl<P: Piece> Differentiable for Differentiated<P> {
    type Tensor = Array;
    type Item = P::Item;
    type Graph = Graph;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        w: &[Array],
        micro: &Micro<'_, P::Item>,
        x: Option<Array>,
    ) -> Result<(Output<Array>, Graph)> {
        // burn's layers take an autodiff device for training, and would apply dropout.
        let given =
            |x: &Array, is_trained| if micro.training { x.leaf(is_trained) } else { x.clone() };
        let weights = w.iter().zip(&self.params).map(|(w, param)| given(w, !param.frozen));
        let weights: Vec<Array> = weights.collect();
        let x = x.as_ref().map(|x| given(x, true));
        let piece = self.piece.clone().map(&mut Given(weights.iter()));
        let (y, output) = match piece.run(&self.burn, micro, x.as_ref()) {
            Ran::Activation(y) => (y.flat.clone(), Output::Activation(y.detached())),
            Ran::Loss(y) => {
                let loss = Array::from(y.clone()).detached();
                let grad = loss.flat.ones_like().into();
                (y, Output::Loss { loss, grad })
            }
        };
        Ok((output, Graph { weights, x, y }))
    }

    fn vjp(&self, graph: Graph, dy: Array) -> Result<(Option<Array>, Vec<Array>)> {
        let Graph { weights, x, y } = graph;
        let mut gradients = y.is_tracked().then(|| (y * dy.flat).sum().backward());
        let mut of = |x: &Array| {
            let gradient = gradients.as_mut().and_then(|all| x.flat.grad_remove(all));
            gradient.map_or_else(|| self.burn.zeros(x.shape()), |flat| Ok(x.alike(flat)))
        };
        let dx = x.as_ref().map(&mut of).transpose()?;
        Ok((dx, weights.iter().map(of).collect::<Result<_>>()?))
    }
}

//! A piece of a burn model as a stage.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param as BurnParam};
use burn::tensor::Tensor;
use chimera_core::device::{Device as _, Result};
use chimera_core::stage::{Autograd, Differentiable, Init, Micro, Output, Param};

use crate::{Array, Burn};

/// A piece of a model: a burn module, and how it runs.
pub trait Piece: Module {
    /// One number of a sample.
    type Item: Copy + Send + Sync + 'static;

    /// Runs the module on `x`, the activation of the piece before, or on the inputs of the samples, which are tensors
    /// of `burn`. Whatever it draws at random has to follow from `micro`: recomputation runs it again. burn's own dropout
    /// draws anew, so it must not be recomputed.
    fn run(&self, burn: &Burn, micro: &Micro<'_, Self::Item>, x: Option<&Array>) -> Ran;
}

/// What a piece comes to.
#[derive(Clone, Debug)]
pub enum Ran {
    /// The input of the next piece; from the last one, without targets, the model's output. Its first extent counts
    /// samples, or rows of samples.
    Activation(Array),
    /// From the last piece, given targets: their loss, summed and times [`loss_scale`](Micro::loss_scale).
    Loss(Tensor<1>),
}

/// The stage of a [`Piece`].
pub type BurnStage<P> = Autograd<Differentiated<P>, Burn>;

/// Makes a stage of a piece, on a device.
///
/// Its parameters are the tensors of floating-point numbers in the module, by their paths; a tensor has weight decay if it
/// is a matrix. Paths must be unique in the model: a stage is best the whole model without what others hold, its layers a
/// `Vec<Option<Layer>>`, where each keeps its index. Weights begin as they are in the module, so all replicas of a stage
/// must be made of clones of one module, or of modules with equal numbers.
pub fn stage<P: Piece>(burn: &Burn, piece: P) -> BurnStage<P> {
    let mut found = Found::default();
    piece.visit(&mut found);
    let differentiated = Differentiated { piece, params: found.params, burn: burn.clone() };
    Autograd::new(differentiated, burn.clone())
}

/// The parameters of a module.
#[derive(Default)]
struct Found {
    path: Vec<String>,
    params: Vec<Param>,
}

impl ModuleVisitor for Found {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &BurnParam<Tensor<D>>) {
        let values: Vec<f32> = param.val().into_data().iter().collect();
        let shape = param.val().dims().to_vec();
        let init = Init::Values(Arc::from(values));
        self.params.push(Param::new(self.path.join("."), shape, init));
    }
}

/// Puts weights of the engine into the place of a module's own.
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

/// What burn recorded in a forward pass.
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
        // burn's layers take a device that differentiates for one that trains: they would drop out in an evaluation.
        let given = |x: &Array| if micro.training { x.leaf() } else { x.clone() };
        let weights: Vec<Array> = w.iter().map(given).collect();
        let x = x.as_ref().map(given);
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

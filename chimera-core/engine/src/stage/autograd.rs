//! Stages of frameworks with automatic differentiation.

use super::edges::no_edges;
use super::{Branched, DynBranched, DynSizes, Micro, Output, Param, Sizes, Stage};
use crate::device::{Device, DeviceError, Result};

/// A piece of a model in a framework with automatic differentiation: a forward pass, and its vector-Jacobian product.
///
/// [`Autograd`] turns it into a [`Stage`]. The whole backward pass runs where a schedule has the
/// input half; the gradients of the weights are kept until the weight half.
pub trait Differentiable: Send {
    /// Activations, gradients and weights.
    type Tensor: Clone + Send;
    /// The type of a sample's numbers.
    type Item: Copy + Send + Sync + 'static;
    /// The framework's record of a forward pass.
    type Graph: Send;

    /// The parameters, in the order of `w` below.
    fn params(&self) -> &[Param];

    /// Runs the stage on `x`, the previous stage's activation (`None` for the first stage). The
    /// last stage, given targets, returns its loss times [`loss_scale`](Micro::loss_scale). Its
    /// `grad` is then whatever [`vjp`](Differentiable::vjp) expects for it, such as a one.
    fn forward(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        x: Option<Self::Tensor>,
    ) -> Result<(Output<Self::Tensor>, Self::Graph)>;

    /// The vector-Jacobian product. Maps the gradient `dy` of the output to the gradient of the
    /// input (`None` for the first stage) and those of the weights, one per parameter, in order.
    fn vjp(
        &self,
        graph: Self::Graph,
        dy: Self::Tensor,
    ) -> Result<(Option<Self::Tensor>, Vec<Self::Tensor>)>;

    /// The [`forward`](Differentiable::forward) of a stage of a graph, see
    /// [`Branched::forward_edges`].
    fn forward_edges(
        &self,
        _w: &[Self::Tensor],
        _micro: &Micro<'_, Self::Item>,
        inputs: Vec<Self::Tensor>,
    ) -> Result<(Vec<Output<Self::Tensor>>, Self::Graph)> {
        no_edges("forward_edges", inputs.len())
    }

    /// The vector-Jacobian product of [`forward_edges`](Differentiable::forward_edges). Maps the
    /// gradients of the outputs to those of the inputs and those of the weights.
    fn vjp_edges(
        &self,
        _graph: Self::Graph,
        gradients: Vec<Self::Tensor>,
    ) -> Result<(Vec<Self::Tensor>, Vec<Self::Tensor>)> {
        no_edges("vjp_edges", gradients.len())
    }

    /// Returns true if there is one activation per output edge, see
    /// [`Branched::has_output_per_edge`].
    fn has_output_per_edge(&self) -> bool {
        false
    }

    /// Returns true if the stage reads [`Micro::input`] or [`Micro::target`]; if not, no samples are
    /// read for it.
    fn needs_inputs(&self) -> bool {
        true
    }

    /// Device memory that a graph holds, in bytes; 0 if the framework does not report it.
    fn graph_bytes(&self, _graph: &Self::Graph) -> u64 {
        0
    }
}

/// A [`Differentiable`] as a stage on a device.
#[derive(Clone, Debug)]
pub struct Autograd<A, D> {
    differentiable: A,
    device: D,
}

impl<A, D> Autograd<A, D> {
    /// Makes a stage of `differentiable`; `device` adds up the gradients.
    pub fn new(differentiable: A, device: D) -> Autograd<A, D> {
        Autograd { differentiable, device }
    }
}

impl<A, D> Stage for Autograd<A, D>
where
    A: Differentiable<Tensor = D::Tensor>,
    D: Device,
{
    type Tensor = A::Tensor;
    type Item = A::Item;
    type Saved = A::Graph;
    /// Gradients of the weights.
    type Deferred = Vec<A::Tensor>;

    fn params(&self) -> &[Param] {
        self.differentiable.params()
    }

    fn forward(
        &self,
        w: &[A::Tensor],
        micro: &Micro<'_, A::Item>,
        x: Option<A::Tensor>,
    ) -> Result<(Output<A::Tensor>, A::Graph)> {
        self.differentiable.forward(w, micro, x)
    }

    fn backward_input(
        &self,
        _: &[A::Tensor],
        _: &Micro<'_, A::Item>,
        graph: A::Graph,
        dy: A::Tensor,
    ) -> Result<(Option<A::Tensor>, Vec<A::Tensor>)> {
        self.differentiable.vjp(graph, dy)
    }

    fn backward_weight(
        &self,
        _: &Micro<'_, A::Item>,
        gradients: Vec<A::Tensor>,
        into: &mut [A::Tensor],
    ) -> Result<()> {
        if gradients.len() != into.len() {
            let (given, asked) = (gradients.len(), into.len());
            return Err(DeviceError::other(format!(
                "the vector-Jacobian product gave {given} gradient(s) of weights, and the stage has {asked} parameter(s): \
                 give one for each, in order"
            )));
        }
        let each = into.iter_mut().zip(&gradients).zip(self.params());
        for ((into, gradient), Param { name, shape, frozen, .. }) in each {
            let got = self.device.shape(gradient);
            if got != *shape {
                return Err(DeviceError::other(format!(
                    "the vector-Jacobian product gave a gradient of shape {got:?} for the parameter `{name}`, which has \
                     {shape:?}: give it in the shape of its parameter"
                )));
            }
            if !frozen {
                self.device.accumulate(into, gradient)?;
            }
        }
        Ok(())
    }

    fn needs_inputs(&self) -> bool {
        self.differentiable.needs_inputs()
    }

    fn branched(&self) -> Option<&DynBranched<'_, Self>> {
        Some(self)
    }

    fn sizes(&self) -> Option<&DynSizes<'_, Self>> {
        Some(self)
    }
}

impl<A: Differentiable<Tensor = D::Tensor>, D: Device> Branched for Autograd<A, D> {
    fn forward_edges(
        &self,
        w: &[A::Tensor],
        micro: &Micro<'_, A::Item>,
        inputs: Vec<A::Tensor>,
    ) -> Result<(Vec<Output<A::Tensor>>, A::Graph)> {
        self.differentiable.forward_edges(w, micro, inputs)
    }

    fn backward_input_edges(
        &self,
        _: &[A::Tensor],
        _: &Micro<'_, A::Item>,
        graph: A::Graph,
        gradients: Vec<A::Tensor>,
    ) -> Result<(Vec<A::Tensor>, Vec<A::Tensor>)> {
        self.differentiable.vjp_edges(graph, gradients)
    }

    fn has_output_per_edge(&self) -> bool {
        self.differentiable.has_output_per_edge()
    }
}

impl<A: Differentiable<Tensor = D::Tensor>, D: Device> Sizes for Autograd<A, D> {
    fn saved_bytes(&self, graph: &A::Graph) -> u64 {
        self.differentiable.graph_bytes(graph)
    }

    fn deferred_bytes(&self, gradients: &Vec<A::Tensor>) -> u64 {
        gradients.iter().map(|gradient| self.device.bytes(gradient)).sum()
    }
}

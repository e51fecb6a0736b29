//! Checks of shapes from a caller's stage or data, which could silently spoil the training.

use chimera_schedule::op::Op;

use crate::comm::{Comm, Endpoint};
use crate::device::Device;
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::{Class, Fault};
use crate::stage::Param;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Refuses a loss that is not a single number.
    pub(crate) fn check_loss(&self, op: &Op, loss: &S::Tensor) -> Result<(), Fault> {
        let shape = self.device.shape(loss);
        match shape.iter().product() {
            1 => Ok(()),
            n => Err(self.misshapen(
                op,
                format!(
                    "{} gave a loss of shape {shape:?}, which has {n} elements: `Output::Loss` takes the sum over all targets \
                     of the micro-batch, one number",
                    op.stage
                ),
            )),
        }
    }

    /// Records the shapes that the gradients of an op's inputs must have.
    pub(crate) fn note_inputs(&mut self, op: &Op, inputs: &[S::Tensor]) {
        if !self.job.program.rules().demand().has_backward(op.stage) {
            return;
        }
        let n_units = usize::from(op.span.len);
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|x| self.device.shape(x)).collect();
        let of_unit = |mut shape: Vec<usize>| {
            let rows = shape.first_mut().filter(|rows| rows.is_multiple_of(n_units));
            rows.map(|rows| *rows /= n_units).map(|()| shape)
        };
        // Inputs that cannot be cut into units are refused where they are cut.
        let shapes = match n_units {
            1 => Some(shapes),
            _ => shapes.into_iter().map(of_unit).collect(),
        };
        for unit in op.span.units() {
            let at = (op.pipe, op.stage, unit);
            shapes.clone().map(|shapes| self.steps.input_shapes.insert(at, shapes));
        }
    }

    /// Refuses gradients of one unit's inputs that do not have the inputs' shapes.
    pub(crate) fn check_input_gradients(
        &mut self,
        op: &Op,
        gradients: &[S::Tensor],
    ) -> Result<(), Fault> {
        let at = (op.pipe, op.stage, op.span.start);
        let inputs = self.steps.input_shapes.remove(&at).unwrap_or_default();
        let pairs = inputs.into_iter().zip(gradients).map(|(x, dx)| (x, self.device.shape(dx)));
        match pairs.into_iter().find(|(x, dx)| x != dx) {
            None => Ok(()),
            Some((x, dx)) => Err(self.misshapen(
                op,
                format!(
                    "{} gave an input gradient of shape {dx:?} for an input of shape {x:?}: the input half of a backward gives \
                     the gradient of each input in the input's shape",
                    op.stage
                ),
            )),
        }
    }

    /// Refuses gradients of weights that do not have their parameters' shapes.
    pub(crate) fn check_gradients(&self, op: &Op) -> Result<(), Fault> {
        let held = self.stages.held(op.stage);
        let each = held.stage.params().iter().zip(&held.grads);
        let each = each.map(|(param, gradient)| (param, self.device.shape(gradient)));
        match each.into_iter().find(|(param, got)| *got != param.gradient_shape()) {
            None => Ok(()),
            Some((Param { name, frozen: true, .. }, got)) => Err(self.misshapen(
                op,
                format!(
                    "{} left a gradient of shape {got:?} for its parameter `{name}`, which is frozen: the weight half of a \
                     backward leaves the tensors of frozen parameters as they are",
                    op.stage
                ),
            )),
            Some((Param { name, shape, .. }, got)) => Err(self.misshapen(
                op,
                format!(
                    "{} left a gradient of shape {got:?} for its parameter `{name}`, which has {shape:?}: the weight half of a \
                     backward adds to the tensors that it is given, and leaves them their shapes",
                    op.stage
                ),
            )),
        }
    }

    /// Refuses a sample with another number of targets than its data declares.
    pub(crate) fn check_targets(
        &self,
        op: &Op,
        (step, sample): (u64, u64),
        n: usize,
    ) -> Result<(), Fault> {
        let data = self.job.data;
        let (targets, length) = (data.n_targets(), data.target_len());
        if n == length {
            return Ok(());
        }
        let said = if length == targets {
            format!("Data::n_targets says {targets}")
        } else {
            format!("Data::target_len says {length}")
        };
        Err(self.misshapen(
            op,
            format!(
                "sample {sample} of step {step} has {n} targets, and {said}: the loss would be another mean. Append as many \
                 to `target` in Data::sample, or say in Data::target_len how many numbers the targets of a sample are"
            ),
        ))
    }

    /// The fault for a problem that the caller has to fix.
    fn misshapen(&self, op: &Op, message: String) -> Fault {
        self.at(Fault::new(Class::Usage, self.comm.rank(), message), op)
    }
}

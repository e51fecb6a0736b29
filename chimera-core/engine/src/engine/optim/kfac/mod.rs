//! K-FAC: gradients of linear layers, preconditioned by Kronecker factors of the curvature (Martens & Grosse, 2015).
//!
//! A linear layer of a network has two factors: the mean `A` of `x xᵀ` over the rows `x` of its input, each with a one
//! behind where the layer has a bias, and the mean `G` of `g gᵀ` over the gradients `g` of its output. Its gradient `M`,
//! `[outputs, inputs + bias]`, becomes `G⁻¹ M A⁻¹`. Linear maps that are fused into one matrix have a `G` each.
//!
//! Factors are taken in the first of every [`Training::kfac_every`] updates, summed over replicas with the gradients, and
//! averaged over time. Their inverses come into use [`Training::kfac_every`] updates later, so that there is time to compute
//! them in (Osawa et al., PipeFisher, 2023); those of the first update at once.

mod cholesky;
mod layer;
mod precondition;
mod work;

pub(crate) use layer::Layer;
pub(crate) use work::KfacPiece;
pub use work::kfac_work;

use chimera_schedule::program::Program;
use chimera_schedule::update::Update;

use crate::device::Result;
use crate::engine::Training;
use crate::engine::optim::param_group::ParamGroup;
use crate::engine::optim::update_rule::UpdateRule;
use crate::stage::Param;

/// Which of a layer's operands a factor is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Its input.
    Input,
    /// The gradient of its output.
    Output,
}

impl Side {
    pub(crate) const BOTH: [Side; 2] = [Side::Input, Side::Output];

    /// Its place among two.
    pub(crate) fn index(self) -> usize {
        match self {
            Side::Input => 0,
            Side::Output => 1,
        }
    }
}

/// What is kept of a parameter that is no matrix of a preconditioned layer: the moments. The bias of such a layer uses the
/// first alone, but a parameter does not say that it is one.
const MOMENTS: &[&str] = &["m", "v"];
/// What is kept of the matrix of a preconditioned layer: momentum, factors and inverses.
const OF_MATRIX: &[&str] =
    &["m", "input_factor", "output_factor", "input_inverse", "output_inverse"];
/// The place of the first factor among them, and that of the first inverse.
const FACTORS: usize = 1;
const INVERSES: usize = 3;

/// The rule: momentum of preconditioned gradients, each as long as a step of AdamW. What is not preconditioned is updated
/// by AdamW.
pub(crate) struct Kfac;

impl UpdateRule for Kfac {
    fn name(&self) -> &str {
        "kfac"
    }

    fn state(&self, param: &Param) -> &[&'static str] {
        if param.features().is_some() { OF_MATRIX } else { MOMENTS }
    }

    fn state_shape(&self, param: &Param, index: usize) -> Vec<usize> {
        let Some((inputs, outputs)) = param.features() else { return param.shape.clone() };
        let bias = usize::from(param.shown.as_ref().is_some_and(|layer| layer.bias.is_some()));
        match index {
            1 => vec![inputs + 1; 2],
            2 => vec![outputs; 2],
            3 => vec![inputs + bias; 2],
            4 => vec![blocks(param).iter().map(|n| n * n).sum()],
            _ => param.shape.clone(),
        }
    }

    fn needs_products(&self) -> bool {
        true
    }

    fn preconditions(&self) -> bool {
        true
    }

    fn update(&self, group: ParamGroup<'_>) -> Result<()> {
        if group.is_preconditioned { group.sgd() } else { group.adamw() }
    }
}

/// Outputs of each linear map of a matrix.
fn blocks(param: &Param) -> Vec<usize> {
    let (_, outputs) = param.features().unwrap_or_default();
    if param.linear_maps.iter().sum::<usize>() == outputs {
        param.linear_maps.clone()
    } else {
        vec![outputs]
    }
}

/// Extents of K-FAC's factors of a stage with these parameters: two for each linear layer, in the order of the layers. They
/// are reduced behind the stage's gradients, in one buffer.
pub fn factor_shapes(params: &[Param]) -> Vec<Vec<usize>> {
    let shown = params.iter().filter(|param| param.features().is_some());
    shown.flat_map(|param| [FACTORS, FACTORS + 1].map(|i| Kfac.state_shape(param, i))).collect()
}

/// Why gradients of such a training cannot be preconditioned, if its optimizer does that.
pub fn unpreconditioned(program: &Program, training: &Training) -> Option<String> {
    let Training { optimizer, shard_optimizer, bf16_gradients, .. } = training;
    let needs = if !optimizer.preconditions() {
        return None;
    } else if program.window().update() != Update::Flush {
        "factors of whole steps: choose a synchronous schedule, and border step"
    } else if *shard_optimizer {
        "all gradients of a layer on each of its replicas: leave shard-optimizer out"
    } else if *bf16_gradients {
        "sums in f32, since factors go between replicas with gradients: leave reduce-precision out"
    } else {
        return None;
    };
    Some(format!("optimizer {} needs {needs}", optimizer.name()))
}

impl Training {
    /// Whether factors are taken in an update, counted from 0.
    pub(crate) fn takes_factors(&self, update: u64) -> bool {
        self.optimizer.preconditions() && update.is_multiple_of(self.kfac_every.max(1))
    }
}

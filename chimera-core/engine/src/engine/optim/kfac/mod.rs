//! K-FAC: gradients of linear layers, preconditioned by Kronecker factors of the curvature (Martens
//! & Grosse, 2015).
//!
//! A linear layer has two factors. `A` is the mean of `x xᵀ` over the rows `x` of its input, each
//! with a one appended if the layer has a bias. `G` is the mean of `g gᵀ` over the gradients `g` of
//! its output. The layer's gradient `M`, `[outputs, inputs + bias]`, becomes `G⁻¹ M A⁻¹`. Each of
//! several linear maps fused into one matrix has its own `G`.
//!
//! Factors are taken in the first of every [`Training::kfac_every`] updates, summed over replicas
//! together with the gradients, and averaged over time. Their inverses take effect
//! [`Training::kfac_every`] updates later, which leaves time to compute them (Osawa et al.,
//! PipeFisher, 2023). Those of the first update take effect at once.

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

/// The operand of a layer that a factor belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The layer's input.
    Input,
    /// The gradient of the layer's output.
    Output,
}

impl Side {
    pub(crate) const BOTH: [Side; 2] = [Side::Input, Side::Output];

    pub(crate) fn index(self) -> usize {
        match self {
            Side::Input => 0,
            Side::Output => 1,
        }
    }
}

/// State of a parameter other than the matrix of a preconditioned layer: the moments. The bias of
/// such a layer uses only the first, but a parameter does not know that it is one.
const MOMENTS: &[&str] = &["m", "v"];
/// State of the matrix of a preconditioned layer: momentum, factors and inverses.
const OF_MATRIX: &[&str] =
    &["m", "input_factor", "output_factor", "input_inverse", "output_inverse"];
/// Indices of the first factor and of the first inverse in the state.
const FACTORS: usize = 1;
const INVERSES: usize = 3;

/// The rule: momentum of preconditioned gradients, scaled so that steps have the length of AdamW's.
/// Other parameters are updated by AdamW.
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

fn blocks(param: &Param) -> Vec<usize> {
    let (_, outputs) = param.features().unwrap_or_default();
    if param.linear_maps.iter().sum::<usize>() == outputs {
        param.linear_maps.clone()
    } else {
        vec![outputs]
    }
}

/// Shapes of K-FAC's factors for a stage with these parameters: two for each linear layer, in
/// order. They are reduced after the stage's gradients, in the same buffer.
pub fn factor_shapes(params: &[Param]) -> Vec<Vec<usize>> {
    let shown = params.iter().filter(|param| param.features().is_some());
    shown.flat_map(|param| [FACTORS, FACTORS + 1].map(|i| Kfac.state_shape(param, i))).collect()
}

/// Returns why this training cannot precondition gradients; `None` if it can or need not.
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
    /// Returns true if factors are taken in this update, counted from 0.
    pub(crate) fn takes_factors(&self, update: u64) -> bool {
        self.optimizer.preconditions() && update.is_multiple_of(self.kfac_every.max(1))
    }
}

//! The part of a model that is trained.

use chimera_engine::device::WeightFormat;
use chimera_engine::stage::ParamPatterns;

/// The part of a model that is trained. The default is all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Names of frozen parameters.
    pub freeze: ParamPatterns,
    /// Adapters, which are then all that is trained.
    pub lora: Option<Lora>,
    /// The format of the frozen matrices of linear layers.
    pub frozen_weights: WeightFormat,
}

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// The factor of an adapter's output is `alpha / rank`.
    pub alpha: usize,
    /// Names of adapted layers, such as `self_attn.q_proj` or `q_proj`; all if it is empty.
    pub targets: ParamPatterns,
}

impl Lora {
    /// Returns the factor of an adapter's output.
    pub fn scale(&self) -> f64 {
        self.alpha as f64 / self.rank as f64
    }

    /// Returns true if a layer, such as `self_attn.q_proj`, is adapted.
    pub(super) fn targets(&self, layer: &str) -> bool {
        self.targets.is_empty()
            || names_of(layer).into_iter().any(|name| self.targets.matches(name))
    }

    /// Returns the first target that names none of these layers.
    pub fn unused_target(&self, layers: &[String]) -> Option<&str> {
        self.targets.unused(layers.iter().flat_map(|layer| names_of(layer)))
    }

    /// Returns true if a parameter of this name belongs to an adapter.
    pub fn is_adapter(name: &str) -> bool {
        name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")
    }
}

/// The names of a layer such as `self_attn.q_proj`: its own, and that without its module.
fn names_of(layer: &str) -> [&str; 2] {
    [layer, layer.rsplit('.').next().unwrap_or(layer)]
}

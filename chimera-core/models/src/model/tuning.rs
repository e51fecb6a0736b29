//! The part of a model that is trained.

use chimera_engine::device::WeightFormat;
use chimera_engine::stage::ParamPatterns;

/// The end of the names of magnitudes, as in the files of peft.
pub(super) const MAGNITUDES: &str = ".lora_magnitude_vector";
/// The end of the names of the squared norms of frozen weights, from which those with an adapter
/// follow.
pub(super) const SQUARES: &str = ".squared_norms";

/// The part of a model that is trained. The default is all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Names of frozen parameters.
    pub freeze: ParamPatterns,
    /// Adapters, which are then all that is trained.
    pub lora: Option<Lora>,
    /// The format of the frozen matrices of linear layers.
    pub frozen_weights: WeightFormat,
}

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// The factor of an adapter's output is `alpha / rank`.
    pub alpha: usize,
    /// Names of adapted layers, such as `self_attn.q_proj` or `q_proj`; all if it is empty.
    pub targets: ParamPatterns,
    /// Probability that an element of an adapter's input is dropped during training.
    pub dropout: f64,
    /// Whether each output also has a trained magnitude, the norm of its weights (DoRA).
    pub has_magnitudes: bool,
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
        [".lora_A.weight", ".lora_B.weight", MAGNITUDES].iter().any(|end| name.ends_with(end))
    }

    /// Returns true if a parameter of this name is of an adapter, or a constant for its magnitudes.
    pub(super) fn is_added(name: &str) -> bool {
        Lora::is_adapter(name) || name.ends_with(SQUARES)
    }
}

/// The names of a layer such as `self_attn.q_proj`: its own, and that without its module.
fn names_of(layer: &str) -> [&str; 2] {
    [layer, layer.rsplit('.').next().unwrap_or(layer)]
}

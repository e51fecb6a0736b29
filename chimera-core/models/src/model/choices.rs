//! Parameters of Llama-style models beyond the sizes that all models have.

use chimera_engine::layers::Activation;

use super::error::ModelError;
use super::rope::RopeScaling;

/// Parameters of a Llama-style model beyond the sizes that all models have. Mistral is one with a
/// sliding window, Qwen2 one with biases of queries, keys and values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Llama {
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Features of a head of queries, keys or values; `None` for `hidden / heads`.
    pub head_dim: Option<usize>,
    /// Features within the MLP.
    pub mlp_hidden: usize,
    /// Function of the MLP's gate.
    pub activation: Activation,
    /// The epsilon of the norms.
    pub norm_epsilon: f64,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Number of tokens that a token sees, up to and including itself; `None` for all.
    pub window: Option<usize>,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies for longer samples.
    pub rope_scaling: RopeScaling,
}

/// The value for a configuration without such parameters. No stage is made of it.
pub(super) const NONE: Llama = Llama {
    kv_heads: 0,
    head_dim: None,
    mlp_hidden: 0,
    activation: Activation::Silu,
    norm_epsilon: 0.0,
    qkv_bias: false,
    window: None,
    rope_theta: 0.0,
    rope_scaling: RopeScaling::None,
};

impl Llama {
    /// Returns the parameters of the first Llama (Touvron et al., 2023), with RoPE's usual base: as
    /// many heads of keys as of queries, and an MLP of `8/3 hidden` features, rounded up to a
    /// multiple of 32.
    pub fn usual(hidden: usize, heads: usize) -> Llama {
        Llama {
            kv_heads: heads,
            mlp_hidden: hidden.saturating_mul(8).div_ceil(3).next_multiple_of(32),
            norm_epsilon: 1e-5,
            rope_theta: 10_000.0,
            ..NONE
        }
    }

    /// Checks that such a model of `hidden` features and `heads` heads can be made.
    pub(super) fn validate(
        &self,
        hidden: usize,
        heads: usize,
        context: usize,
    ) -> Result<(), ModelError> {
        for (what, value, most) in [
            ("kv-heads", self.kv_heads, 1 << 20),
            ("head-dim", self.head_dim.unwrap_or(1), (1 << 20) / heads),
            ("mlp-hidden", self.mlp_hidden, 1 << 22),
            ("sliding-window", self.window.unwrap_or(1), 1 << 24),
        ] {
            if value == 0 {
                return Err(ModelError::Zero { what });
            }
            if value > most {
                return Err(ModelError::TooLarge { what, value, most });
            }
        }
        if !heads.is_multiple_of(self.kv_heads) {
            return Err(ModelError::KvHeads { heads, kv_heads: self.kv_heads });
        }
        let dim = self.head_dim.unwrap_or(hidden / heads);
        if !dim.is_multiple_of(2) {
            return Err(ModelError::OddHeads { dim });
        }
        for (what, value) in [("norm-eps", self.norm_epsilon), ("rope-theta", self.rope_theta)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ModelError::NotPositive { what, value });
            }
        }
        if matches!(self.rope_scaling, RopeScaling::Yarn { .. }) && self.rope_theta <= 1.0 {
            return Err(ModelError::YarnTheta { theta: self.rope_theta });
        }
        self.rope_scaling.validate(context)
    }
}

//! The gate functions of a llama's MLP, by name.

use std::str::FromStr;

use chimera_core::layers::Activation;
use chimera_core::notation::by_name;

/// The gate function of a llama's MLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MlpGate(pub Activation);

impl MlpGate {
    /// All functions, by name.
    pub const ALL: [(&str, MlpGate); 3] = [
        ("silu", MlpGate(Activation::Silu)),
        ("gelu", MlpGate(Activation::Gelu)),
        ("gelu-tanh", MlpGate(Activation::GeluTanh)),
    ];
}

impl FromStr for MlpGate {
    type Err = String;

    fn from_str(name: &str) -> Result<MlpGate, String> {
        by_name("activation", name, &MlpGate::ALL)
    }
}

//! The function of the gate of a llama's MLP, by name.

use std::str::FromStr;

use chimera_core::layers::Activation;
use chimera_core::notation::by_name;

/// The function of the gate of a llama's MLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate(pub Activation);

impl Gate {
    /// All functions, by name.
    pub const ALL: [(&str, Gate); 3] = [
        ("silu", Gate(Activation::Silu)),
        ("gelu", Gate(Activation::Gelu)),
        ("gelu-tanh", Gate(Activation::GeluTanh)),
    ];
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(name: &str) -> Result<Gate, String> {
        by_name("activation", name, &Gate::ALL)
    }
}

//! Rates of dropout.

/// The rates at which a model drops elements during training.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DropoutRates {
    /// Rate after the embedding.
    pub embedding: f64,
    /// Rate of the residual contributions of attention and MLP; a BERT has one rate for these and the embedding.
    pub residual: f64,
    /// Rate of the attention's probabilities.
    pub attention: f64,
}

impl DropoutRates {
    /// The default of `transformers` if `config.json` has no rate.
    pub(super) const USUAL: f64 = 0.1;

    /// Returns one rate everywhere, as in training here.
    pub fn all(rate: f64) -> DropoutRates {
        DropoutRates { embedding: rate, residual: rate, attention: rate }
    }

    /// Returns the rate, if there is only one.
    pub fn one(&self) -> Option<f64> {
        (*self == DropoutRates::all(self.embedding)).then_some(self.embedding)
    }
}

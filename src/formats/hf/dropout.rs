//! Rates of dropout.

/// At which rates a model drops elements while it is trained.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DropoutRates {
    /// Behind the embedding.
    pub embedding: f64,
    /// Of what attention and MLP add to a block; a BERT has one rate for these and the embedding.
    pub residual: f64,
    /// Of the attention's probabilities.
    pub attention: f64,
}

impl DropoutRates {
    /// What `transformers` takes where `config.json` says nothing.
    pub(super) const USUAL: f64 = 0.1;

    /// One rate everywhere, as training here has it.
    pub fn all(rate: f64) -> DropoutRates {
        DropoutRates { embedding: rate, residual: rate, attention: rate }
    }

    /// The rate, if there is only one.
    pub fn one(&self) -> Option<f64> {
        (*self == DropoutRates::all(self.embedding)).then_some(self.embedding)
    }
}

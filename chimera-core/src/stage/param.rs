//! The parameters of a stage, and their initial values.

use std::sync::Arc;

/// How the initial values of a tensor are drawn, from (seed, name) alone.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between minus this bound and this bound.
    Uniform(f64),
    /// Given values, row-major, one for each element.
    Values(Arc<[f32]>),
}

/// One weight tensor of a stage.
#[derive(Clone, PartialEq, Debug)]
pub struct Param {
    /// Unique in the model, and independent of the number of stages; keys checkpoints.
    pub name: String,
    /// Extents, row-major.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Whether weight decay applies (matrices, not biases and norms).
    pub decay: bool,
    /// Whether the last and the first stage share this tensor (a tied head); its gradient is then
    /// summed over the workers of both.
    pub tied: bool,
}

impl Param {
    /// A tensor of a stage, with weight decay if it is a matrix, and not tied.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, init: Init) -> Param {
        let shape = shape.into();
        Param { name: name.into(), decay: shape.len() > 1, shape, init, tied: false }
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

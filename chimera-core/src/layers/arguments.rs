//! What layers take beside tensors.

use super::Dropout;

/// How the matrix of a linear layer lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// `[inputs, outputs]`, as GPT-2 keeps its projections (`Conv1D`).
    InOut,
    /// `[outputs, inputs]`, as an output head that is also an embedding table.
    OutIn,
}

/// A function of [`Layers::activation`](super::Layers::activation).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, GPT-2's GELU.
    GeluTanh,
    /// `x/2 (1 + erf(x/√2))`, BERT's GELU (Hendrycks & Gimpel, 2016).
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
}

/// How rows attend to each other in [`Layers::attention`](super::Layers::attention).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention<'m> {
    /// Into how many heads queries, keys and values are split.
    pub heads: usize,
    /// Rows of a sample.
    pub context: usize,
    /// Which keys the rows of a sample see.
    pub mask: Mask<'m>,
    /// Which weights of the softmax are dropped, numbered as [`weight`](Attention::weight) says.
    pub dropout: Option<Dropout>,
}

impl Attention<'_> {
    /// Each row sees those of its sample up to itself, and nothing is dropped.
    pub fn causal(heads: usize, context: usize) -> Attention<'static> {
        Attention { heads, context, mask: Mask::Causal, dropout: None }
    }

    /// The number of the weight that row `row` of all samples gives the first key of its sample in head `head`.
    /// The numbers of the other keys follow, whether the row sees them or not.
    #[inline(always)]
    pub fn weight(&self, row: usize, head: usize) -> u64 {
        (row as u64 * self.heads as u64 + head as u64) * self.context as u64
    }
}

/// Which keys the rows of a sample see in [`Attention`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mask<'m> {
    /// Each row those up to itself.
    Causal,
    /// Every row of sample `s` the first `lengths[s]`, at least one and at most the context: the others
    /// are padding. Rows of padding query like any other; nothing reads what they get.
    Lengths(&'m [u32]),
}

impl Mask<'_> {
    /// How many keys row `row` of sample `sample` sees: the first of that sample.
    #[inline(always)]
    pub fn n_keys(self, sample: usize, row: usize) -> usize {
        match self {
            Mask::Causal => row + 1,
            Mask::Lengths(lengths) => lengths[sample] as usize,
        }
    }
}

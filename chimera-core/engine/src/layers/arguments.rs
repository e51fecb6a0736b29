//! What layers take beside tensors.

use std::ops::Range;

use super::Dropout;

/// How the matrix of a linear layer lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// `[inputs, outputs]`, as GPT-2 keeps its projections (`Conv1D`).
    InOut,
    /// `[outputs, inputs]`, as an output head that is also an embedding table.
    OutIn,
}

/// A function of [`Pointwise::activation`](super::Pointwise::activation).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, GPT-2's GELU.
    GeluTanh,
    /// `x/2 (1 + erf(x/√2))`, BERT's GELU (Hendrycks & Gimpel, 2016).
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
    /// `x/(1 + exp(-x))`, the gate of Llama's MLP (Hendrycks & Gimpel, 2016; Shazeer, 2020).
    Silu,
}

/// What [`LlamaLayers::rotary`](super::LlamaLayers::rotary) turns, and which way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotary {
    /// How many heads of a row are turned, from its start.
    pub heads: usize,
    /// Whether a gradient is turned back.
    pub backward: bool,
}

/// How rows attend to each other in [`Attend::attention`](super::Attend::attention).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention<'m> {
    /// Into how many heads queries are split.
    pub heads: usize,
    /// Into how many heads keys and values are split; divides `heads`. Consecutive query heads share a head of keys and
    /// values where these are fewer (grouped-query attention: Ainslie et al., 2023).
    pub kv_heads: usize,
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
        Attention { heads, kv_heads: heads, context, mask: Mask::Causal, dropout: None }
    }

    /// Features of a head, where a row of queries, keys and values is `width` long.
    #[inline(always)]
    pub fn head_dim(&self, width: usize) -> usize {
        width / (self.heads + 2 * self.kv_heads)
    }

    /// Features of all heads: the width of the result.
    pub fn hidden(&self, width: usize) -> usize {
        self.heads * self.head_dim(width)
    }

    /// Which keys row `row` of sample `sample` sees, counted within that sample.
    #[inline(always)]
    pub fn keys(&self, sample: usize, row: usize) -> Range<usize> {
        match self.mask {
            Mask::Causal => 0..row + 1,
            Mask::Window(rows) => (row + 1).saturating_sub(rows)..row + 1,
            Mask::Documents(firsts) => firsts[sample * self.context + row] as usize..row + 1,
            Mask::Lengths(lengths) => 0..lengths[sample] as usize,
        }
    }

    /// Where the mask is data, four numbers for each row of `samples`, all counted within its sample: the first key that
    /// it sees and the end of these, the first row that sees it as a key and the end of these.
    pub fn seen(&self, samples: usize) -> Option<Vec<u32>> {
        let Attention { context, mask, .. } = *self;
        if matches!(mask, Mask::Causal | Mask::Window(_)) {
            return None;
        }
        let mut seen = Vec::with_capacity(4 * samples * context);
        for sample in 0..samples {
            let mut end = 0; // of the rows that see a key
            for row in 0..context {
                while end < context && self.keys(sample, end).start <= row {
                    end += 1;
                }
                let rows = match mask {
                    Mask::Lengths(lengths) if row >= lengths[sample] as usize => context..context,
                    Mask::Lengths(_) => 0..context,
                    _ => row..end,
                };
                let keys = self.keys(sample, row);
                seen.extend([keys.start, keys.end, rows.start, rows.end].map(|n| n as u32));
            }
        }
        Some(seen)
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
    /// Each row those up to itself, but the last so many alone, at least one (sliding window).
    Window(usize),
    /// Row `r` of all those of its sample from row `firsts[r]` on up to itself (packed documents). Rows behind each other
    /// in a sample begin no earlier.
    Documents(&'m [u32]),
    /// Every row of sample `s` the first `lengths[s]`, at least one and at most the context: the others
    /// are padding. Rows of padding query like any other; nothing reads what they get.
    Lengths(&'m [u32]),
}

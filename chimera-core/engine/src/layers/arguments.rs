//! Arguments of layers other than tensors.

use std::ops::Range;

use super::Dropout;

/// Memory layout of the matrix of a linear layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// `[inputs, outputs]`, the layout of GPT-2's projections (`Conv1D`).
    InOut,
    /// `[outputs, inputs]`, the layout of an output head that is also an embedding table.
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

/// The heads that [`LlamaLayers::rotary`](super::LlamaLayers::rotary) rotates, and the direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotary {
    /// Number of heads to rotate, from the start of each row.
    pub heads: usize,
    /// Whether to rotate back, as for a gradient.
    pub backward: bool,
}

/// Settings of [`Attend::attention`](super::Attend::attention).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention<'m> {
    /// Number of query heads.
    pub heads: usize,
    /// Number of heads of keys and values; divides `heads`. If it is smaller, consecutive query
    /// heads share a head of keys and values (grouped-query attention: Ainslie et al., 2023).
    pub kv_heads: usize,
    /// Rows per sample.
    pub context: usize,
    /// The keys that each row sees.
    pub mask: Mask<'m>,
    /// Dropout of softmax weights, if any; [`weight`](Attention::weight) numbers the weights.
    pub dropout: Option<Dropout>,
}

impl Attention<'_> {
    /// Attention in which each row sees its sample up to itself, without dropout.
    pub fn causal(heads: usize, context: usize) -> Attention<'static> {
        Attention { heads, kv_heads: heads, context, mask: Mask::Causal, dropout: None }
    }

    /// Features per head, if a row of queries, keys and values has `width` elements.
    #[inline(always)]
    pub fn head_dim(&self, width: usize) -> usize {
        width / (self.heads + 2 * self.kv_heads)
    }

    /// Features of all heads: the width of the result.
    pub fn hidden(&self, width: usize) -> usize {
        self.heads * self.head_dim(width)
    }

    /// The keys that row `row` of sample `sample` sees, counted within that sample.
    #[inline(always)]
    pub fn keys(&self, sample: usize, row: usize) -> Range<usize> {
        match self.mask {
            Mask::Causal => 0..row + 1,
            Mask::Window(rows) => (row + 1).saturating_sub(rows)..row + 1,
            Mask::Documents(firsts) => firsts[sample * self.context + row] as usize..row + 1,
            Mask::Lengths(lengths) => 0..lengths[sample] as usize,
        }
    }

    /// For masks that depend on data, returns four numbers for each row of `samples`, all counted
    /// within its sample: the first key that the row sees, the end of these keys, the first row
    /// that sees the row as a key, and the end of these rows. `None` for other masks.
    pub fn seen(&self, samples: usize) -> Option<Vec<u32>> {
        let Attention { context, mask, .. } = *self;
        if matches!(mask, Mask::Causal | Mask::Window(_)) {
            return None;
        }
        let mut seen = Vec::with_capacity(4 * samples * context);
        for sample in 0..samples {
            let mut end = 0; // end of the rows that see a key
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

    /// Number of the weight that row `row` (of all samples) gives the first key of its sample in
    /// head `head`. The numbers of the other keys follow, whether the row sees them or not.
    #[inline(always)]
    pub fn weight(&self, row: usize, head: usize) -> u64 {
        (row as u64 * self.heads as u64 + head as u64) * self.context as u64
    }
}

/// The keys that each row of a sample sees in [`Attention`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mask<'m> {
    /// Each row sees the rows up to itself.
    Causal,
    /// Each row sees the last `n` rows up to itself, at least one (sliding window).
    Window(usize),
    /// Row `r` (counted over all samples) sees the rows of its sample from `firsts[r]` up to itself
    /// (packed documents). Within a sample, `firsts` must not decrease.
    Documents(&'m [u32]),
    /// Every row of sample `s` sees the first `lengths[s]` rows, from one to the context; the
    /// others are padding. Rows of padding query like any other, and their results are never read.
    Lengths(&'m [u32]),
}

//! Samples in the form that models read.

/// Samples of equal length, one after another.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// Number of samples.
    pub n_samples: usize,
    /// Model input of each sample: `sequence` ids; for a BERT, further numbers come before them.
    pub input: Vec<u32>,
    /// Expected output: the next token at each position, or
    /// [`IGNORED`](chimera_core::layers::IGNORED). For a BERT, the masked tokens, and 1 if the
    /// second segment does not follow the first.
    pub target: Vec<u32>,
}

impl Batch {
    /// Returns input and target of each sample.
    pub fn samples(&self) -> impl Iterator<Item = (&[u32], &[u32])> {
        let [input, target] =
            [self.input.len(), self.target.len()].map(|n| (n / self.n_samples.max(1)).max(1));
        self.input.chunks(input).zip(self.target.chunks(target))
    }
}

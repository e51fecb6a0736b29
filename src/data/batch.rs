//! Samples as models read them.

/// Samples side by side, one after another, each as long as the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// How many.
    pub n_samples: usize,
    /// What the model reads of each: `sequence` ids, or what stands before them in a BERT's sample too.
    pub input: Vec<u32>,
    /// What it is to say: the token that comes next at each position, or [`IGNORED`](chimera_core::layers::IGNORED); or
    /// those that are masked, and whether the second segment is from elsewhere.
    pub target: Vec<u32>,
}

impl Batch {
    /// Input and target of each sample.
    pub fn samples(&self) -> impl Iterator<Item = (&[u32], &[u32])> {
        let [input, target] =
            [self.input.len(), self.target.len()].map(|n| (n / self.n_samples.max(1)).max(1));
        self.input.chunks(input).zip(self.target.chunks(target))
    }
}

//! The corpus as the engine asks for it.

use std::io::Result;

use chimera_core::engine::Data;

use crate::data::{Batch, Corpus};

/// What is trained on.
pub(super) struct Samples<'r> {
    pub(super) corpus: &'r Corpus,
    pub(super) seed: u64,
    pub(super) context: usize,
    /// Samples of the global batch.
    pub(super) per_step: u64,
}

impl Data for Samples<'_> {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> Result<()> {
        let number = step.wrapping_mul(self.per_step).wrapping_add(sample);
        let batch = self.corpus.batch(self.seed, number..number.saturating_add(1))?;
        input.extend(batch.input);
        target.extend(batch.target);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        self.context
    }
}

/// What is evaluated on.
pub(super) struct HeldOut {
    pub(super) batch: Batch,
    pub(super) context: usize,
}

impl HeldOut {
    pub(super) fn n_samples(&self) -> u64 {
        (self.batch.input.len() / self.context) as u64
    }
}

impl Data for HeldOut {
    fn sample(
        &self,
        _: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> Result<()> {
        let start = sample as usize * self.context;
        let window = start..start + self.context;
        input.extend(self.batch.input.get(window.clone()).unwrap_or_default());
        target.extend(self.batch.target.get(window).unwrap_or_default());
        Ok(())
    }

    fn n_targets(&self) -> usize {
        self.context
    }
}

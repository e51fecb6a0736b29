//! The corpus as the engine asks for it.

use std::io::Result;

use chimera_core::stage::Data;

use crate::data::{Batch, Corpus};

/// What is trained on.
pub(super) struct Samples<'r> {
    pub(super) corpus: &'r Corpus,
    pub(super) seed: u64,
    pub(super) n_targets: usize,
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
        self.n_targets
    }
}

/// What is evaluated on.
pub(super) struct HeldOutText {
    pub(super) batch: Batch,
    pub(super) n_targets: usize,
}

impl Data for HeldOutText {
    fn sample(
        &self,
        _: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> Result<()> {
        if let Some((of_input, of_target)) = self.batch.samples().nth(sample as usize) {
            input.extend(of_input);
            target.extend(of_target);
        }
        Ok(())
    }

    fn n_targets(&self) -> usize {
        self.n_targets
    }
}

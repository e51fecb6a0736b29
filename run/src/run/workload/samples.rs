//! The corpus as data of the engine.

use std::io::Result;
use std::sync::{Mutex, PoisonError};

use chimera_core::stage::Data;

use crate::data::{Batch, Corpus, n_ignored};

/// The samples to train on.
pub(crate) struct Samples<'r> {
    pub(crate) corpus: &'r Corpus,
    pub(crate) seed: u64,
    pub(crate) n_targets: usize,
    /// Numbers in the targets of a sample.
    pub(crate) target_len: usize,
    /// Samples of the global batch.
    pub(crate) per_step: u64,
    /// The last step whose targets were counted, and their number.
    pub(crate) counted: Mutex<Option<(u64, u64)>>,
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

    fn target_len(&self) -> usize {
        self.target_len
    }

    fn n_counted(&self, step: u64, n_samples: u64) -> Result<u64> {
        let all = n_samples * self.n_targets as u64;
        if !self.corpus.has_ignored() {
            return Ok(all);
        }
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        match *counted {
            Some((known, n)) if known == step => Ok(n),
            _ => {
                let first = step.wrapping_mul(self.per_step);
                let batch = self.corpus.batch(self.seed, first..first.saturating_add(n_samples))?;
                let n = all - n_ignored(&batch.target) as u64;
                *counted = Some((step, n));
                Ok(n)
            }
        }
    }
}

/// The samples to evaluate on.
pub(crate) struct HeldOutText {
    pub(crate) batch: Batch,
    pub(crate) n_targets: usize,
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

    fn n_counted(&self, _: u64, n_samples: u64) -> Result<u64> {
        Ok(n_samples * self.n_targets as u64 - n_ignored(&self.batch.target) as u64)
    }
}

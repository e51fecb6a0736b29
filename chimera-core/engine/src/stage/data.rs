//! Sources of samples, and the part of the samples that a stage sees.

/// A source of samples. A (step, sample) always gives the same sample, on every rank.
///
/// Steps are counted from 0, and only steps that are trained are requested: a training of n steps
/// of m samples needs exactly n times m samples, also for its final checkpoint. A sample may be
/// requested several times, and in any order. Samples held out for evaluation are requested with
/// the number of the step after which the evaluation runs, or with step 0, and must be the same
/// every time.
///
/// `I` is the type of a sample's numbers: `u32` for token ids, `f32` or `f64` for measured values.
pub trait Data<I = u32>: Sync {
    /// Appends the inputs and targets of sample number `sample` of `step`'s global batch.
    ///
    /// # Errors
    /// If the sample cannot be read; this ends the run.
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<I>,
        target: &mut Vec<I>,
    ) -> std::io::Result<()>;

    /// Number of targets of each sample, at least 1. The loss of a step is the mean over the
    /// targets of its samples.
    fn n_targets(&self) -> usize;

    /// Number of values that [`sample`](Data::sample) appends to `target`; by default one per
    /// target. A sample with another number of values ends the run.
    fn target_len(&self) -> usize {
        self.n_targets()
    }

    /// Number of targets that count among the first `n_samples` samples of a step; the loss is the
    /// mean over these. By default all count; override it if stages ignore some.
    ///
    /// # Errors
    /// If the samples cannot be read; this ends the run.
    fn n_counted(&self, _step: u64, n_samples: u64) -> std::io::Result<u64> {
        Ok(n_samples * self.n_targets() as u64)
    }
}

impl<I, D: Data<I> + ?Sized> Data<I> for &D {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<I>,
        target: &mut Vec<I>,
    ) -> std::io::Result<()> {
        (**self).sample(step, sample, input, target)
    }

    fn n_targets(&self) -> usize {
        (**self).n_targets()
    }

    fn target_len(&self) -> usize {
        (**self).target_len()
    }

    fn n_counted(&self, step: u64, n_samples: u64) -> std::io::Result<u64> {
        (**self).n_counted(step, n_samples)
    }
}

/// One micro-batch, or a part of one, as a stage sees it.
#[derive(Clone, Copy, Debug)]
pub struct Micro<'a, I = u32> {
    /// Number of the step, from 0. With `sample`, it seeds everything that a stage draws at random.
    pub step: u64,
    /// Number of the first sample within the global batch of the step.
    pub sample: u64,
    /// The inputs of all samples, one sample after another. Empty for a stage that does not
    /// [need inputs](super::Stage::needs_inputs).
    pub input: &'a [I],
    /// The targets of all samples, one sample after another, for a stage that has a loss. Empty for
    /// all others, and when only outputs are wanted.
    pub target: &'a [I],
    /// Factor of the summed loss, for a stage that has a loss: one over the number of targets that
    /// count in the global batch.
    pub loss_scale: f64,
    /// Whether the micro-batch is trained on. Dropout and the like are off in an evaluation.
    pub training: bool,
}

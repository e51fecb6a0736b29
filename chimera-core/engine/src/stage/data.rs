//! Where samples come from, and the part of them that a stage sees.

/// Source of samples. A (step, sample) always gives the same sample, on every rank.
///
/// Steps are counted from 0, and only those that are trained are asked for: a training of n steps of m samples each needs n times m
/// samples, and its checkpoint at the end none beyond them. Any of them may be asked for several times, and in any order. What is held
/// out for evaluations is asked for with the number of the step behind which it is evaluated, or of step 0, and has the same
/// samples in each.
///
/// `I` is the type of a sample's numbers: `u32` for the ids of tokens, `f32` or `f64` for measured values.
pub trait Data<I = u32>: Sync {
    /// Appends the inputs and targets of sample number `sample` of `step`'s global batch.
    ///
    /// # Errors
    /// If the sample cannot be read: the run ends.
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<I>,
        target: &mut Vec<I>,
    ) -> std::io::Result<()>;

    /// Number of targets of each sample, at least 1: the loss of a step is the mean over the targets of its samples.
    fn n_targets(&self) -> usize;

    /// How many numbers [`sample`](Data::sample) appends to `target`: one for each target, unless the data says otherwise. A run
    /// whose samples have others ends.
    fn target_len(&self) -> usize {
        self.n_targets()
    }

    /// How many targets the first `n_samples` samples of a step have that count: all, unless the data knows some that a
    /// stage ignores. The loss is the mean over these.
    ///
    /// # Errors
    /// If the samples cannot be read: the run ends.
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
    /// Number of the step, from 0. With `sample` it keys whatever a stage draws at random.
    pub step: u64,
    /// Number of the first sample within the global batch of the step.
    pub sample: u64,
    /// The inputs of all samples, one sample after another. Empty for a stage that does not
    /// [need inputs](super::Stage::needs_inputs).
    pub input: &'a [I],
    /// The targets of all samples, one sample after another, for a stage that has a loss. Empty for all others, and when
    /// only outputs are wanted.
    pub target: &'a [I],
    /// Factor of the summed loss: one over the number of targets of the global batch that count. For a stage that has a
    /// loss.
    pub loss_scale: f64,
    /// Whether the micro-batch is trained on; dropout and the like are off in an evaluation.
    pub training: bool,
}

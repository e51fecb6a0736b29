//! Memory of gradients whose sums are sharded over replicas (ZeRO stage 2): a stage's gradients
//! exist from the first op that adds to them until their reduction starts. After that each replica
//! keeps its shard of the sum.

use super::memory::{Moment, for_used, kept_bytes_change};
use super::weights::WeightSizes;
use crate::costs::StageBytes;
use crate::ir::ids::{BucketId, StageId};
use crate::ir::op::{Cell, Op};
use crate::program::{Instr, Program};

/// Sizes of gradients and of their shards, in bytes or in any other unit.
#[derive(Clone, PartialEq, Debug)]
pub struct GradientSizes {
    /// By bucket of an update: its stages, each with the size of its gradients in the bucket.
    pub whole: Vec<Vec<(StageId, f64)>>,
    /// By worker and bucket of an update: the size of the sums that the worker keeps.
    pub kept: Vec<Vec<f64>>,
    /// Sizes of weights, if replicas share them.
    pub weights: Option<WeightSizes>,
}

impl GradientSizes {
    /// Returns sizes in a unit of which one element takes `n`.
    #[must_use]
    pub fn times(mut self, n: f64) -> GradientSizes {
        self.whole.iter_mut().flatten().for_each(|(_, size)| *size *= n);
        self.kept.iter_mut().flatten().for_each(|size| *size *= n);
        self.weights = self.weights.map(|weights| weights.times(n));
        self
    }
}

/// Peak memory of each worker, including its gradients.
#[derive(Clone, PartialEq, Debug)]
pub struct GradientPeaks {
    /// The most bytes of gradients and of values kept for backwards, as
    /// [`peak_bytes`](super::peak_bytes) counts them.
    pub kept: Vec<f64>,
    /// The most bytes of gradients and of all else, as
    /// [`peak_working_bytes`](super::peak_working_bytes) counts it. The copy of its own shard from
    /// which a rank begins to sum is counted too.
    pub used: Vec<f64>,
}

/// Returns the most bytes that each worker of a synchronous `program` holds and uses at once, including
/// gradients and gathered weights, if a unit of a micro-batch has `samples` samples.
pub fn peaks_with_gradients(
    program: &Program,
    stages: &[StageBytes],
    samples: f64,
    sizes: &GradientSizes,
) -> GradientPeaks {
    let mut peaks = GradientPeaks { kept: Vec::new(), used: Vec::new() };
    for (worker, (row, kept)) in program.rows().iter().zip(&sizes.kept).enumerate() {
        let gradients = HeldGradients { sizes, worker, kept, begun: Vec::new(), size: 0.0 };
        let (kept, used) = of_row(program, row, (stages, samples), gradients);
        peaks.kept.push(kept);
        peaks.used.push(used);
    }
    peaks
}

/// Returns both peaks of a row.
fn of_row(
    program: &Program,
    row: &[Instr],
    (stages, samples): (&[StageBytes], f64),
    mut gradients: HeldGradients<'_>,
) -> (f64, f64) {
    let (mut kept, mut most_kept, mut most_used) = (0.0f64, 0.0f64, 0.0f64);
    for_used(program, row, (stages, samples), |moment, used| match moment {
        Moment::During(op) => {
            gradients.run(op);
            most_used = most_used.max(used + gradients.size);
            most_kept = most_kept.max(kept + gradients.size);
            let (more, less) = kept_bytes_change(program, stages, samples, &Cell::One(*op));
            kept += more - less;
        }
        Moment::After(instr) => {
            if let Some(bucket) = instr.reduced() {
                let shard = gradients.kept[bucket.index()];
                most_used = most_used.max(used + gradients.size + shard);
                gradients.reduce(bucket);
            }
            gradients.gather(instr);
            most_kept = most_kept.max(kept + gradients.size);
            most_used = most_used.max(used + gradients.size);
        }
    });
    (most_kept, most_used)
}

/// The gradients of a worker at a position of its row, and the weights that it has gathered.
struct HeldGradients<'s> {
    sizes: &'s GradientSizes,
    worker: usize,
    /// By bucket: the size of the sums that this worker keeps.
    kept: &'s [f64],
    /// The stages with gradients that have been started.
    begun: Vec<StageId>,
    size: f64,
}

impl HeldGradients<'_> {
    /// Begins the gradients of an op's stage, if the op is the first that adds to them.
    fn run(&mut self, op: &Op) {
        if !op.kind.adds_gradient() || self.begun.contains(&op.stage) {
            return;
        }
        self.begun.push(op.stage);
        let all = self.sizes.whole.iter().flatten();
        self.size += all.filter(|(stage, _)| *stage == op.stage).map(|(_, size)| size).sum::<f64>();
    }

    /// Adds or removes weights.
    fn gather(&mut self, instr: &Instr) {
        let weights = self.sizes.weights.as_ref();
        self.size += weights.map_or(0.0, |weights| weights.change(self.worker, instr));
    }

    /// Replaces the gradients of a bucket by the shard that the worker keeps.
    fn reduce(&mut self, bucket: BucketId) {
        let begun = self.sizes.whole[bucket.index()].iter();
        let begun = begun.filter(|(stage, _)| self.begun.contains(stage));
        self.size += self.kept[bucket.index()] - begun.map(|(_, size)| size).sum::<f64>();
    }
}

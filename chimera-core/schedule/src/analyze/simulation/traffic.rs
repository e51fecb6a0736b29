//! The bytes that messages and reductions carry.

use rustc_hash::FxHashMap;

use crate::effects::Token;
use crate::ir::compression::Compression;
use crate::ir::ids::{BucketId, StageId};
use crate::ir::placement::Placement;

/// The bytes of everything that a program sends.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Traffic {
    /// Number of units that a micro-batch is cut into.
    pub(in crate::analyze) units_per_micro: f64,
    /// Bytes of each stage's output for a whole micro-batch; its gradient is as large.
    pub(in crate::analyze) activations: Vec<f64>,
    /// Bytes on edges that do not carry the output of their first stage.
    pub(in crate::analyze) edges: FxHashMap<(StageId, StageId), f64>,
    /// Bytes of the gradients of each bucket of one update; if empty, reductions take no time.
    pub(in crate::analyze) gradients: Vec<f64>,
    /// Compression of messages, and the place of the workers that send them.
    pub(in crate::analyze) compressed: Option<(Compression, Placement)>,
}

impl Traffic {
    /// Messages of `activations` bytes by stage, for micro-batches of this many units, and
    /// reductions of `gradients` bytes by bucket of one update.
    pub fn new(units_per_micro: u32, activations: Vec<f64>, gradients: Vec<f64>) -> Traffic {
        let units_per_micro = f64::from(units_per_micro);
        let edges = FxHashMap::default();
        Traffic { units_per_micro, activations, edges, gradients, compressed: None }
    }

    /// Returns the bytes of a message; 0 if it does not go between stages.
    pub fn message(&self, token: &Token) -> f64 {
        let Some(edge) = token.edge() else { return 0.0 };
        let bytes = self.edges.get(&edge).copied();
        let output = || self.activations.get(edge.0.index()).copied().unwrap_or(0.0);
        let share = f64::from(token.span.len) / self.units_per_micro;
        bytes.unwrap_or_else(output) * share * self.part(token)
    }

    /// Returns the part of a message's bytes that compression leaves.
    fn part(&self, token: &Token) -> f64 {
        let Some((compression, placement)) = &self.compressed else { return 1.0 };
        let [from, to] = [token.stage, token.to].map(|stage| placement.worker(token.pipe, stage));
        compression.between(from, to).part()
    }

    /// Returns the bytes of a bucket's gradients.
    pub fn sum(&self, bucket: BucketId) -> f64 {
        match self.gradients.len() {
            0 => 0.0,
            n => self.gradients[bucket.index() % n],
        }
    }
}

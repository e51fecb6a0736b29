//! The memory of ranks, which may differ from rank to rank.

use chimera_settings::{Config, least_of_workers};

use super::need::Need;

/// Bytes of memory of each rank, from rank 0 on; further ranks repeat them.
#[derive(Clone, PartialEq, Debug)]
pub struct RankMemory(Vec<f64>);

impl RankMemory {
    /// Makes the memory of ranks from the bytes of each; `None` if the list is empty.
    pub fn new(bytes: Vec<f64>) -> Option<RankMemory> {
        (!bytes.is_empty()).then_some(RankMemory(bytes))
    }

    /// Returns the memory of the rank with the least.
    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the memory of the rank with the most.
    pub fn most(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the need of the worker nearest to its memory limit, or furthest beyond it, and the
    /// bytes that it is beyond the limit; they are negative if all workers fit.
    pub(super) fn tightest(
        &self,
        config: &Config,
        needs: impl Iterator<Item = Need>,
    ) -> (Need, f64) {
        let memory = least_of_workers(&self.0, config.schedule.depth, config.schedule.width);
        let beyond = needs.zip(memory).map(|(need, memory)| (need, need.total() - memory));
        beyond.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }
}

impl From<f64> for RankMemory {
    fn from(bytes: f64) -> RankMemory {
        RankMemory(vec![bytes])
    }
}

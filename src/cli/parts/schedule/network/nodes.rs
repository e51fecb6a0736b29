//! Reductions that begin inside of nodes, on the network of a simulated job.

use anyhow::{Result, ensure};
use chimera_core::analyze::{Network, ReductionAlgorithm};

use super::LinkArgs;
use crate::settings::Config;

impl LinkArgs {
    /// Returns the network of a job of groups of `depth` ranks. The ranks of a node add up first if
    /// they do so in the job.
    ///
    /// # Errors
    /// If a link was not measured, if others than the ranks of a node add up first, or if a topology
    /// says how ranks reduce.
    pub(super) fn network_of(&self, job: &Config, depth: usize) -> Result<Network> {
        let width = job.schedule.width;
        let network = self.network(width, width * depth)?;
        let within = job.replicas.reduce_within as usize;
        if within == 0 {
            return Ok(network);
        }
        ensure!(
            self.topology.is_none(),
            "a topology says itself how ranks reduce (`reductions` in its file): leave --reduce-within or --topology out"
        );
        ensure!(
            within == network.ranks_per_node,
            "--reduce-within {within} is about the ranks of a node, and nodes have {}: give --ranks-per-node {within} too",
            network.ranks_per_node
        );
        Ok(Network { reductions: ReductionAlgorithm::Nodes, ..network })
    }
}

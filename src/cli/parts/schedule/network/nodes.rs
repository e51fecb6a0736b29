//! Reductions that begin inside of nodes, on the network of a simulated job.

use anyhow::{Result, ensure};
use chimera_core::analyze::{Network, ReductionAlgorithm};

use crate::settings::Config;

/// Lets the ranks of a node add up first, if they do so in the job.
///
/// # Errors
/// If the job says so of other ranks than those of a node, or if a topology says how ranks reduce.
pub(super) fn reducing_within(
    network: Network,
    job: &Config,
    has_topology: bool,
) -> Result<Network> {
    let within = job.replicas.reduce_within as usize;
    if within == 0 {
        return Ok(network);
    }
    ensure!(
        !has_topology,
        "a topology says itself how ranks reduce (`reductions` in its file): leave --reduce-within or --topology out"
    );
    ensure!(
        within == network.ranks_per_node,
        "--reduce-within {within} is about the ranks of a node, and nodes have {}: give --ranks-per-node {within} too",
        network.ranks_per_node
    );
    Ok(Network { reductions: ReductionAlgorithm::Nodes, ..network })
}

//! The devices of ranks on a topology: as it says, or searched.

use std::fmt::Write;

use anyhow::{Context, Result};
use chimera_core::analyze::links::{Contended, Mapping, Topology, Traffic, map_ranks};
use chimera_core::analyze::simulate_on;
use chimera_core::costs::Costs;
use chimera_core::program::Program;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::plan::{Candidate, Cluster};

/// The most steps that a search simulates.
const MOST_SIMULATED: usize = 4000;

/// The devices of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum RankMap {
    /// Ranks on the devices that the topology assigns
    #[default]
    Given,
    /// Search: swap two ranks, or move one to a free device, as long as that shortens the step
    Search,
}

/// A step on a topology, and where its ranks were found to belong.
pub(crate) struct OnTopology {
    pub(crate) step: Contended,
    pub(crate) mapping: Option<Mapping>,
}

impl RankMap {
    /// Simulates a step, on the devices that are searched first if they are to be.
    pub(crate) fn simulate(
        self,
        program: &Program,
        costs: &impl Costs,
        traffic: &Traffic,
        topology: &Topology,
        width: usize,
    ) -> Result<OnTopology> {
        let search = || {
            let found = map_ranks(program, costs, traffic, topology, width, MOST_SIMULATED);
            found.context("--topology")
        };
        let mapping = (self == RankMap::Search).then(search).transpose()?;
        let topology = mapping.as_ref().map_or(topology, |mapping| &mapping.topology);
        let step = simulate_on(program, costs, traffic, topology, width).context("--topology")?;
        Ok(OnTopology { step, mapping })
    }

    /// Searches the devices of a configuration's ranks, if they are to be searched.
    pub(crate) fn search_for(self, way: &Candidate, cluster: &Cluster) -> Result<Option<Mapping>> {
        match self {
            RankMap::Given => Ok(None),
            RankMap::Search => way.map_on(cluster, MOST_SIMULATED),
        }
    }
}

/// Returns what a search found as JSON.
pub(crate) fn mapping_json(mapping: &Mapping) -> Value {
    let Mapping { topology, given_s, step_s, n_simulated } = mapping;
    json!({
        "ranks": topology.ranks, "step_s": step_s, "step_s_as_given": given_s,
        "n_simulated": n_simulated,
    })
}

/// Writes what a search found, with the devices for the file's `ranks`.
pub(crate) fn write_mapping(text: &mut String, mapping: &Mapping) -> Result<()> {
    let Mapping { topology, given_s, step_s, n_simulated } = mapping;
    write!(
        text,
        "\nmapping: {:.1} % shorter than as given, after {n_simulated} simulated steps; ranks {}",
        100.0 * (1.0 - step_s / given_s),
        topology.ranks.join(" ")
    )?;
    Ok(())
}

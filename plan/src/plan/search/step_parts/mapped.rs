//! The devices on which a configuration's step is shortest.

use std::sync::Arc;

use anyhow::Result;
use chimera_core::analyze::links::{Mapping, Topology};

use crate::plan::search::candidate::{Candidate, Cluster};
use crate::plan::search::estimate::ConfigGroup;
use crate::plan::search::step_time::taken;

impl Candidate {
    /// Searches for the devices on which its step is shortest, with at most this many simulations;
    /// `None` without a topology, or if the step is too long to be simulated.
    ///
    /// # Errors
    /// If there is no such configuration.
    pub fn map_on(&self, cluster: &Cluster, most: usize) -> Result<Option<Mapping>> {
        let Some(topology) = cluster.topology.as_deref().filter(|_| self.is_simulated) else {
            return Ok(None);
        };
        let mut group = ConfigGroup::simulated(cluster, false);
        let plan = group.plan(&self.config, self.config.schedule.micro_batches)?;
        let step = |topology: &Topology| {
            let mapped = Cluster { topology: Some(Arc::new(topology.clone())), ..cluster.clone() };
            let time = taken(&plan, &self.config, &mapped, false)?;
            Ok::<f64, anyhow::Error>(time.makespan + time.agree)
        };
        Mapping::search(topology, cluster.n_ranks, most, step).map(Some)
    }
}

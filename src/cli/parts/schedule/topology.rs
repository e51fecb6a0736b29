//! Topologies on the command line, and the messages of compared schedules over them.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use chimera_core::analyze::links::{PRESETS, Topology, TopologyPreset, Traffic};
use chimera_core::analyze::{Timeline, simulate_on};
use chimera_core::costs::Costs;
use chimera_core::program::Program;
use clap::Args;

use crate::formats::files::text_regular;

/// Longer files are refused before they are read.
const MAX_BYTES: u64 = 64 << 20;

/// A topology: a preset, which grows with the job, or a file.
#[derive(Clone)]
pub(crate) enum TopologyArg {
    Preset(&'static TopologyPreset),
    File(Arc<Topology>),
}

impl FromStr for TopologyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<TopologyArg, String> {
        if let Some(preset) = TopologyPreset::named(text) {
            return Ok(TopologyArg::Preset(preset));
        }
        let names = || PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ");
        let file = text_regular(Path::new(text), MAX_BYTES).map_err(|error| {
            format!("it is neither a preset ({}) nor a file that can be read: {error}", names())
        })?;
        let file = file.ok_or_else(|| format!("longer than the limit of {MAX_BYTES} bytes"))?;
        let topology = Topology::from_json(&file).map_err(|error| error.to_string())?;
        Ok(TopologyArg::File(Arc::new(topology)))
    }
}

impl TopologyArg {
    /// Returns the topology for a job.
    pub(crate) fn topology(&self, n_ranks: usize, ranks_per_node: Option<u32>) -> Arc<Topology> {
        match self {
            TopologyArg::Preset(preset) => {
                Arc::new(preset.topology(n_ranks, ranks_per_node.map(|n| n as usize)))
            }
            TopologyArg::File(topology) => topology.clone(),
        }
    }
}

/// The links that compared schedules share, and what they send over them.
#[derive(Args, Clone, Default)]
pub(crate) struct SharedLinks {
    /// Machine whose links messages and reductions share: two-level, rail, pcie, ethernet, aries, or a JSON file
    #[arg(long, value_name = "PRESET|FILE")]
    topology: Option<TopologyArg>,
    /// Pipeline groups side by side on the topology
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=65_535), requires = "topology")]
    width: Option<u32>,
    /// Bytes of a message of a micro-batch on the topology
    #[arg(long, value_name = "BYTES", value_parser = bytes, requires = "topology")]
    activation_bytes: Option<f64>,
    /// Bytes of the gradients of 1/D of the model, whose reductions use the topology
    #[arg(long, value_name = "BYTES", value_parser = bytes, requires = "topology")]
    gradient_bytes: Option<f64>,
}

impl SharedLinks {
    /// Simulates a program on the topology, if there is one.
    pub(crate) fn simulate(
        &self,
        program: &Program,
        costs: &impl Costs,
    ) -> Result<Option<Timeline>> {
        let Some(topology) = &self.topology else { return Ok(None) };
        let width = self.width.unwrap_or(1) as usize;
        let placement = program.placement();
        let n_stages = placement.n_stages();
        let part = placement.n_workers() as f64 / n_stages as f64;
        let of_stage = self.gradient_bytes.unwrap_or(0.0) * part;
        let buckets = program.buckets_of_update().iter();
        let gradients = buckets.map(|bucket| of_stage * bucket.stages.len() as f64).collect();
        let activations = vec![self.activation_bytes.unwrap_or(0.0); n_stages];
        let traffic = Traffic::new(program.units_per_micro(), activations, gradients);
        let topology = topology.topology(placement.n_ranks(width), None);
        let step = simulate_on(program, costs, &traffic, &topology, width);
        Ok(Some(step.context("--topology")?.timeline))
    }

    /// Returns true if there is a topology, whose times are in seconds.
    pub(crate) fn has_topology(&self) -> bool {
        self.topology.is_some()
    }
}

/// Parses a number of bytes, 0 or more.
fn bytes(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|bytes| (0.0..=1e18).contains(bytes));
    number.ok_or_else(|| format!("`{text}` is not a number of bytes from 0 to 1e18"))
}

//! Values that were read by eye from the paper's figures.

use anyhow::{Context, Result};
use chimera_core::lower::Sync;
use chimera_core::model::{ModelConfig, Preset};
use serde::Deserialize;

/// Readings of the paper's figures.
const FILE: &str = include_str!("../../paper.json");

/// All readings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Readings {
    pub(super) machines: Vec<Machine>,
    pub(super) figures: Vec<Figure>,
    /// Figs. 10 and 11.
    pub(super) tuning: Vec<Tuning>,
    /// Fig. 12.
    pub(super) eager_opt: Vec<EagerOpt>,
    /// Fig. 15.
    pub(super) weak_scaling: WeakScaling,
    /// Fig. 9.
    pub(super) memory: Vec<MemoryCase>,
}

/// A cluster that the paper measured on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) about: String,
    /// Memory of a device.
    pub(super) memory_gb: f64,
    /// Operations of a product that reaches half of the rate of large ones; 0 if all reach it.
    #[serde(default)]
    pub(super) half_rate_gflop: f64,
}

/// A figure of throughputs, in sequences per second.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    pub(super) figure: String,
    pub(super) title: String,
    pub(super) machine: String,
    model: String,
    /// Number of layers, if it differs from the preset's.
    layers: Option<usize>,
    pub(super) sequence: usize,
    /// Workers, W x D.
    pub(super) nodes: usize,
    /// Sequences per step, B^.
    pub(super) batch: usize,
    /// The highest bar according to the paper.
    best: Option<String>,
    /// The bars that it is compared with; all if empty.
    #[serde(default)]
    among: Vec<String>,
    pub(super) bars: Vec<Bar>,
}

/// A configuration, and its throughput.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) schedule: String,
    pub(super) depth: usize,
    /// Sequences per micro-batch, B. If nothing states it, the power of two that is the fastest of
    /// those that fit into memory.
    pub(super) size: Option<usize>,
    #[serde(default)]
    pub(super) recompute: bool,
    /// Whether the last stage keeps its activations although the others recompute theirs.
    #[serde(default)]
    pub(super) keeps_last: bool,
    /// The source of depth, micro-batch size and recomputation.
    #[serde(default)]
    pub(super) inputs: Inputs,
    #[serde(default)]
    pub(super) scaling: Option<String>,
    #[serde(default)]
    pub(super) pipes: Option<usize>,
    /// Sequences per second, where the figure can be read.
    pub(super) reading: Option<f64>,
    /// Whether constants are fitted to it.
    #[serde(default)]
    pub(super) fitted: bool,
}

/// The source of a bar's depth, micro-batch size and recomputation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Inputs {
    /// The paper's text or figure.
    #[default]
    Paper,
    /// The job scripts that its authors published.
    Scripts,
    /// Neither: assumed here.
    Assumed,
}

/// A figure that shows which shape of each baseline is the fastest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tuning {
    pub(super) figure: String,
    /// The figure whose model, nodes and batch it has.
    pub(super) like: String,
    pub(super) depths: Vec<usize>,
    pub(super) best: Vec<Bar>,
}

/// Speed of eager-opt over eager reduction.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EagerOpt {
    pub(super) nodes: usize,
    pub(super) batch: usize,
    pub(super) reading: f64,
}

/// Throughput of a node among many over that of a node among few.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WeakScaling {
    pub(super) nodes: [usize; 2],
    pub(super) reading: f64,
}

/// A shape whose memory the paper shows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryCase {
    pub(super) name: String,
    model: String,
    layers: Option<usize>,
    pub(super) sequence: usize,
    pub(super) width: usize,
    pub(super) depth: usize,
    pub(super) size: usize,
    /// Least and most memory of a worker by schedule.
    #[serde(default)]
    pub(super) readings_gb: std::collections::BTreeMap<String, [f64; 2]>,
}

impl Readings {
    pub(super) fn read() -> Result<Readings> {
        serde_json::from_str(FILE).context("research/paper.json")
    }

    pub(super) fn machine(&self, figure: &Figure) -> Result<&Machine> {
        let found = self.machines.iter().find(|machine| machine.name == figure.machine);
        found.with_context(|| format!("there is no machine {}", figure.machine))
    }

    /// The figure of a number, such as `13, GPT-2`.
    pub(super) fn figure(&self, number: &str) -> Result<&Figure> {
        let found = self.figures.iter().find(|figure| figure.figure == number);
        found.with_context(|| format!("there is no Fig. {number}"))
    }
}

impl Figure {
    pub(super) fn model(&self) -> Result<ModelConfig> {
        model(&self.model, self.layers)
    }

    /// Name of the model, whose number of layers may differ.
    pub(super) fn preset(&self) -> &str {
        &self.model
    }

    /// Returns true if the paper says which of some bars is the highest, and this is one of them.
    pub(super) fn compares(&self, bar: &Bar) -> bool {
        self.best.is_some() && (self.among.is_empty() || self.among.contains(&bar.name))
    }

    /// The highest of the compared bars.
    pub(super) fn best(&self) -> Option<&str> {
        self.best.as_deref()
    }
}

impl Bar {
    /// A schedule without options.
    pub(super) fn plain(schedule: &str, depth: usize) -> Bar {
        Bar {
            name: schedule.to_string(),
            schedule: schedule.to_string(),
            depth,
            size: None,
            recompute: false,
            keeps_last: false,
            inputs: Inputs::Paper,
            scaling: None,
            pipes: None,
            reading: None,
            fitted: false,
        }
    }

    /// When gradients are reduced.
    pub(super) fn sync(&self) -> Sync {
        if self.is_asynchronous() { Sync::InBackward } else { Sync::EagerOpt }
    }

    /// Returns true if updates do not wait for a flush of the pipeline.
    pub(super) fn is_asynchronous(&self) -> bool {
        self.schedule.starts_with("pipedream")
    }
}

impl MemoryCase {
    pub(super) fn model(&self) -> Result<ModelConfig> {
        model(&self.model, self.layers)
    }
}

fn model(name: &str, layers: Option<usize>) -> Result<ModelConfig> {
    let preset = Preset::named(name).with_context(|| format!("there is no preset {name}"))?;
    let mut config = preset.config.clone();
    config.layers = layers.unwrap_or(config.layers);
    Ok(config)
}

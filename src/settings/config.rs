//! Resolved settings.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use chimera_core::engine::Patience;
use chimera_core::lower::Passes;
use chimera_core::model::ModelConfig;
use chimera_core::schedule::Shape;
use chimera_core::search::Search;
use toml::Value;

use super::Config;

impl Config {
    /// The shape of the schedule.
    pub fn shape(&self) -> Shape {
        Shape {
            depth: self.depth,
            n_micro_batches: u32::try_from(self.micro_batches).unwrap_or(u32::MAX),
            n_pipes: self.pipes,
            n_chunks: self.chunks,
            scaling: self.scaling,
            n_in_turn: self.in_turn,
            n_waves: self.waves,
            in_flight: self.in_flight,
            window: self.window,
        }
    }

    /// The passes over the schedule.
    pub fn passes(&self) -> Passes {
        let Config { recompute, hoist, split_backward, .. } = *self;
        Passes { recompute, hoist, split_backward }
    }

    /// How `auto` searches.
    pub fn search(&self) -> Search {
        Search {
            max_peak: self.memory_cap,
            time_limit: Duration::from_secs_f64(self.search_time),
            seed: self.search_seed.unwrap_or(self.seed),
            ..Search::default()
        }
    }

    /// How long ranks wait for each other.
    pub fn patience(&self) -> Patience {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
        let later = seconds(self.timeout);
        Patience { first_step: later.max(seconds(self.start_timeout)), later }
    }

    /// The model.
    pub fn model(&self) -> ModelConfig {
        ModelConfig {
            architecture: self.architecture,
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            context: self.context,
            vocab: self.vocab,
            tied: self.tied,
        }
    }
}

/// Some steps, at least one, written `A..B`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepRange(pub Range<u64>);

impl FromStr for StepRange {
    type Err = String;

    fn from_str(text: &str) -> Result<StepRange, String> {
        let ends = text.split_once("..").map(|(a, b)| (a.trim().parse(), b.trim().parse()));
        match ends {
            Some((Ok(from), Ok(to))) if from < to => Ok(StepRange(from..to)),
            _ => Err(format!("{text} is no range of steps such as 1..11")),
        }
    }
}

/// Value and origin by key.
pub(super) type Entries = BTreeMap<&'static str, (Value, Origin)>;

impl fmt::Display for StepRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.0.start, self.0.end)
    }
}

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Nothing else was said.
    Default,
    /// The preset of this name.
    Preset(String),
    /// A file, and the line of the key.
    File(PathBuf, usize),
    /// An option of the command.
    CommandLine,
    /// The timetable in this file.
    Timetable(PathBuf),
    /// The model in this folder.
    Model(PathBuf),
    /// The checkpoint in this folder.
    Checkpoint(PathBuf),
    /// The description of this data file.
    Data(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::Preset(name) => write!(f, "preset {name}"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::CommandLine => write!(f, "command line"),
            Origin::Timetable(path) => write!(f, "timetable {}", path.display()),
            Origin::Model(dir) => write!(f, "model {}", dir.display()),
            Origin::Checkpoint(dir) => write!(f, "checkpoint {}", dir.display()),
            Origin::Data(path) => write!(f, "data {}", path.display()),
        }
    }
}

//! The settings of a training run: one [table of options](OPTIONS) for the command line and for TOML files.
//!
//! Layers, each overriding those before it: defaults, the preset, the files that the configuration
//! file `extends`, the file itself, the command line. [`Layers::resolve`] merges and checks them
//! and remembers the origin of each value; `chimera config show` prints that. It opens no file
//! itself: it asks [`Outside`] for the content of files and the environment.

mod config;
mod sources;
mod table;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Value;

pub use chimera_core::compression::Compression;
pub use config::MODEL;
pub use sources::absent::absent;
use sources::check;
pub use sources::llama::llama_of;
pub use sources::origin::{OWN_MODEL, Origin};
pub use sources::outside::{Nothing, Outside, Start};
pub use sources::peers::own_name;
pub use sources::show::{markdown, quoted};
pub use table::in_vain::{of_our_models, said_in_vain};
pub use table::option::{Drawn, Opt, Resume};
pub use table::options::{
    CheckpointSettings, Config, CostSettings, DataSettings, DeviceSettings, ModelSettings, OPTIONS,
    OutputSettings, PassSettings, ReplicaSettings, ScheduleSettings, TrainingSettings,
};
pub use table::readers::unread_options;
pub use values::byte_size::ByteSize;
pub use values::gate::MlpGate;
pub use values::layout::Layout;
pub use values::peer_values::meant;
pub use values::recomputed::{RecomputedStages, StageRecompute, UnfitStages};
pub use values::scaling::Scaling;
pub use values::schedules;
pub use values::speeds::Speeds;
pub use values::speeds::least_of_workers;
pub use values::survive::{Evict, Survive};
pub use values::text_rows::{TextRow, text_rows};
pub use values::transport::Transport;
pub use values::value::{Kind, StepRange};
pub use values::weights::DataWeights;

/// An error in the settings (exit code 2).
#[derive(thiserror::Error, Clone, PartialEq, Debug)]
#[error("{place}{}{message}", if .place.is_empty() { "" } else { ": " })]
pub struct SettingsError {
    /// The origin of the value, such as `file.toml:3`; empty if the message names it.
    pub place: String,
    /// The problem, and a valid alternative.
    pub message: String,
}

/// The command-line arguments of every command that trains.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layers {
    /// TOML file with the same keys as the options.
    pub config: Option<PathBuf>,
    /// Settings given on the command line itself.
    pub settings: Settings,
}

/// The settings in one layer, by key; lower layers provide the others.
///
/// Paths are relative to the current directory, even those in files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    values: BTreeMap<String, Value>,
    /// Whether these come from the options of a command rather than from a program.
    is_command_line: bool,
}

impl Settings {
    /// Returns empty settings of a command line, which messages name as the origin.
    pub fn of_command_line() -> Settings {
        Settings { is_command_line: true, ..Settings::default() }
    }

    /// Returns these settings merged over `others`.
    pub fn over(&self, others: &Settings) -> Settings {
        let mut both = others.clone();
        both.values.extend(self.values.clone());
        both.is_command_line |= self.is_command_line;
        both
    }

    /// Adds a value. The key and the value are only checked when the settings are
    /// [resolved](Layers::resolve).
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Settings {
        self.values.insert(name_of(key), value.into());
        self
    }

    /// Removes a value.
    pub fn without(mut self, key: &str) -> Settings {
        self.values.remove(&name_of(key));
        self
    }

    /// Iterates over the known keys that have values, in the order of the help text.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        OPTIONS.iter().filter_map(|option| Some((option.name, self.values.get(option.name)?)))
    }
}

/// Returns the main name of an option from any of its names, or `key` itself if it is not an
/// option.
fn name_of(key: &str) -> String {
    check::option(key).map_or(key, |option| option.name).to_owned()
}

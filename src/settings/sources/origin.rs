//! Where the values of settings come from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use toml::Value;

/// Value and origin by key.
pub(crate) type Entries = BTreeMap<&'static str, (Value, Origin)>;

/// The key of files for the name of a model that is a program's own: what a run of one writes, it reads.
pub(crate) const OWN_MODEL: &str = "own-model";

/// The text that a key has, if it has one.
pub(crate) fn text<'e>(merged: &'e Entries, key: &str) -> Option<&'e str> {
    merged.get(key).and_then(|(value, _)| value.as_str())
}

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Nothing else was said.
    Default,
    /// Nothing else was said, and it is what suits this machine where the default is `auto`.
    Machine,
    /// The preset of this name.
    Preset(String),
    /// A file, and the line of the key.
    File(PathBuf, usize),
    /// An option of the command.
    CommandLine,
    /// The [`Settings`](crate::settings::Settings) of a program.
    Program,
    /// The timetable in this file.
    Timetable(PathBuf),
    /// The model in this folder.
    Model(PathBuf),
    /// The checkpoint in this folder.
    Checkpoint(PathBuf),
    /// The description of this data file.
    Data(PathBuf),
}

impl Origin {
    /// Whether nobody said the value.
    pub fn is_default(&self) -> bool {
        matches!(self, Origin::Default | Origin::Machine)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::Machine => write!(f, "default on this machine"),
            Origin::Preset(name) => write!(f, "preset {name}"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::CommandLine => write!(f, "command line"),
            Origin::Program => write!(f, "settings"),
            Origin::Timetable(path) => write!(f, "timetable {}", path.display()),
            Origin::Model(dir) => write!(f, "model {}", dir.display()),
            Origin::Checkpoint(dir) => write!(f, "checkpoint {}", dir.display()),
            Origin::Data(path) => write!(f, "data {}", path.display()),
        }
    }
}

//! The origins of the values of settings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use toml::Value;

/// Values with their origins, by key.
pub(crate) type Entries = BTreeMap<&'static str, (Value, Origin)>;

/// The key for the name of a program's own model. Runs of such a model write it to their settings
/// file and read it back.
pub const OWN_MODEL: &str = "own-model";

/// Returns the text value of a key, if it has one.
pub(crate) fn text<'e>(merged: &'e Entries, key: &str) -> Option<&'e str> {
    merged.get(key).and_then(|(value, _)| value.as_str())
}

/// The origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The default, because no value was given.
    Default,
    /// A default that was chosen for this machine.
    Machine,
    /// A default of the command's recipe.
    Recipe,
    /// The preset of this name.
    Preset(String),
    /// A file, with the line number of the key.
    File(PathBuf, usize),
    /// An option of the command.
    CommandLine,
    /// The [`Settings`](crate::Settings) of a program.
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
    /// Returns true if no value was given.
    pub fn is_default(&self) -> bool {
        matches!(self, Origin::Default | Origin::Machine | Origin::Recipe)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::Machine => write!(f, "default on this machine"),
            Origin::Recipe => write!(f, "default recipe"),
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

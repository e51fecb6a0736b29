//! The notation of the options' values, in TOML and on the command line.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use chimera_core::device::WeightFormat;
use chimera_core::engine::{LrSchedule, NonFinite, Optimizer, ParamRules};
use chimera_core::lower::{Border, Hoist, Offloading, Recompute, Sync};
use chimera_core::model::{Architecture, RopeScaling};
use chimera_core::search::Where;
use chimera_core::stage::ParamPatterns;
use chimera_device::{Bf16Products, Precision};
use toml::Value;

use super::schedules::{Named, names};
use crate::{
    ByteSize, Compression, DataWeights, Evict, Layout, MlpGate, RecomputedStages, Scaling, Speeds,
    Survive, Transport,
};

/// The kind of an option's values.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Whole numbers in a range.
    Whole(i64, i64),
    /// Numbers in a range.
    Real(f64, f64),
    /// True or false.
    Flag,
    /// One of these words.
    Words(fn() -> Vec<&'static str>),
    /// Any text; these are examples.
    Text(&'static [&'static str]),
    /// A file or folder.
    Path,
    /// Files.
    Paths,
    /// Weights of files, with sum 1.
    Weights,
    /// A schedule's name, or a file.
    Schedule,
    /// A word, or a number of cells.
    Hoist,
    /// A word, or the layers of each stage.
    Layout,
    /// A word, or numbers of stages.
    Stages,
    /// Relative speeds of ranks.
    Speeds,
    /// A number of bytes, with or without a unit.
    Bytes,
    /// A scaling of rotary frequencies.
    RopeScaling,
    /// Hyperparameters by parameter name.
    ParamRules,
    /// Patterns of parameter names.
    ParamPatterns,
    /// A range of steps.
    Steps,
    /// An address of this machine.
    Loopback,
}

impl Kind {
    /// Parses a word of the command line; it is one path if there may be several. Does not check
    /// the range.
    pub fn parse(self, word: &str) -> Option<Value> {
        match self {
            Kind::Whole(..) => word.trim().parse().ok().map(Value::Integer),
            Kind::Real(..) => word.trim().parse().ok().map(Value::Float),
            Kind::Flag => word.parse().ok().map(Value::Boolean),
            _ => Some(Value::String(word.to_string())),
        }
    }

    /// Converts `value` to this kind, if possible, without checking the range. A whole number is
    /// also accepted as a number.
    pub(crate) fn typed(self, value: Value) -> Result<Value, String> {
        let typed = match self {
            Kind::Whole(..) => value.try_into::<i64>().map(Value::from),
            Kind::Real(..) => value.try_into::<f64>().map(Value::from),
            Kind::Flag => value.try_into::<bool>().map(Value::from),
            Kind::Paths => match value {
                Value::String(path) => Ok(Value::from(vec![path])),
                other => other.try_into::<Vec<String>>().map(Value::from),
            },
            Kind::Hoist | Kind::Bytes => match value {
                Value::Integer(cells) => Ok(Value::String(cells.to_string())),
                Value::String(word) => Ok(Value::String(word)),
                other => return Err(format!("{} is neither word nor number", other.type_str())),
            },
            Kind::Layout | Kind::Weights | Kind::Stages | Kind::Speeds => match value {
                Value::Array(numbers) => {
                    let numbers: Vec<String> = numbers.iter().map(Value::to_string).collect();
                    Ok(Value::String(numbers.join(",")))
                }
                other => other.try_into::<String>().map(Value::from),
            },
            _ => value.try_into::<String>().map(Value::from),
        };
        typed.map_err(|error| error.message().to_string())
    }

    /// Lists words that a value can be, or begin with.
    pub fn examples(self) -> Vec<&'static str> {
        match self {
            Kind::Flag => vec!["true", "false"],
            Kind::Words(words) => words(),
            Kind::Text(examples) => examples.to_vec(),
            Kind::Schedule => names(),
            Kind::RopeScaling => vec!["none", "linear:factor=", "dynamic:", "yarn:", "llama3:"],
            Kind::Hoist => vec!["on-demand", "auto", "0"],
            Kind::Layout => Layout::WORDS.iter().map(|(word, _)| *word).collect(),
            Kind::Stages => RecomputedStages::WORDS.iter().map(|(word, _)| *word).collect(),
            _ => Vec::new(),
        }
    }
}

/// A type of option values.
pub(crate) trait Setting: Sized {
    const KIND: Kind;

    fn read(value: &Value) -> Result<Self, String>;

    /// Writes the value; `None` if there is none.
    fn write(&self) -> Option<Value>;

    /// Returns the value of an option that has neither a value nor a default, if the type allows
    /// that.
    fn unset() -> Option<Self> {
        None
    }
}

impl<T: Setting> Setting for Option<T> {
    const KIND: Kind = T::KIND;

    fn read(value: &Value) -> Result<Self, String> {
        T::read(value).map(Some)
    }

    fn write(&self) -> Option<Value> {
        self.as_ref()?.write()
    }

    fn unset() -> Option<Self> {
        Some(None)
    }
}

/// Implements `Setting` for types that TOML has.
macro_rules! plain {
    ($($type:ty = $kind:expr, $write:expr;)+) => {$(
        impl Setting for $type {
            const KIND: Kind = $kind;

            fn read(value: &Value) -> Result<Self, String> {
                value.clone().try_into().map_err(|error| error.message().to_string())
            }

            fn write(&self) -> Option<Value> {
                let write: fn(&$type) -> Value = $write;
                Some(write(self))
            }
        }
    )+};
}

fn whole(n: impl TryInto<i64>) -> Value {
    Value::Integer(n.try_into().unwrap_or(i64::MAX))
}

fn text(path: &Path) -> Value {
    Value::String(path.display().to_string())
}

plain! {
    usize = Kind::Whole(0, i64::MAX), |n| whole(*n);
    u32 = Kind::Whole(0, u32::MAX as i64), |n| whole(*n);
    u64 = Kind::Whole(0, i64::MAX), |n| whole(*n);
    f64 = Kind::Real(0.0, f64::MAX), |x| Value::Float(*x);
    bool = Kind::Flag, |flag| Value::Boolean(*flag);
    String = Kind::Text(&[]), |text| Value::String(text.clone());
    PathBuf = Kind::Path, |path| text(path);
    Vec<PathBuf> = Kind::Paths, |paths| Value::Array(paths.iter().map(|path| text(path)).collect());
}

/// Implements `Setting` for types that are written as text.
macro_rules! texts {
    ($($type:ty = $kind:expr;)+) => {$(
        impl Setting for $type {
            const KIND: Kind = $kind;

            fn read(value: &Value) -> Result<Self, String> {
                let text = value.as_str().unwrap_or_default();
                text.parse().map_err(|error: <$type as FromStr>::Err| error.to_string())
            }

            fn write(&self) -> Option<Value> {
                Some(Value::String(self.to_string()))
            }
        }
    )+};
}

texts! {
    Compression = Kind::Text(&["f32", "bf16", "int8"]);
    Named = Kind::Schedule;
    Hoist = Kind::Hoist;
    Layout = Kind::Layout;
    RecomputedStages = Kind::Stages;
    DataWeights = Kind::Weights;
    Speeds = Kind::Speeds;
    ByteSize = Kind::Bytes;
    RopeScaling = Kind::RopeScaling;
    ParamRules = Kind::ParamRules;
    ParamPatterns = Kind::ParamPatterns;
    StepRange = Kind::Steps;
    SocketAddr = Kind::Loopback;
}

impl Setting for Architecture {
    const KIND: Kind = Kind::Words(|| Architecture::ALL.map(Architecture::name).to_vec());

    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().unwrap_or_default().parse()
    }

    fn write(&self) -> Option<Value> {
        Some(Value::String(self.name().into()))
    }
}

impl Setting for Optimizer {
    const KIND: Kind = Kind::Words(|| Optimizer::NAMES.to_vec());

    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().unwrap_or_default().parse()
    }

    fn write(&self) -> Option<Value> {
        Some(Value::String(self.name().into()))
    }
}

/// Implements `Setting` for types whose values have names.
macro_rules! words {
    ($($type:ty),+) => {$(
        impl Setting for $type {
            const KIND: Kind = Kind::Words(|| <$type>::ALL.map(|(name, _)| name).to_vec());

            fn read(value: &Value) -> Result<Self, String> {
                value.as_str().unwrap_or_default().parse()
            }

            fn write(&self) -> Option<Value> {
                let mut all = <$type>::ALL.iter();
                all.find(|(_, value)| value == self).map(|(name, _)| Value::String((*name).into()))
            }
        }
    )+};
}

words!(Bf16Products, Border, MlpGate, LrSchedule, NonFinite, Offloading, Precision, Recompute);
words!(Evict, Scaling, Survive, Sync, Transport, WeightFormat, Where);

/// A range of steps, not empty, written `A..B`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepRange(pub Range<u64>);

impl FromStr for StepRange {
    type Err = String;

    fn from_str(text: &str) -> Result<StepRange, String> {
        let ends = text.split_once("..").map(|(a, b)| (a.trim().parse(), b.trim().parse()));
        match ends {
            Some((Ok(from), Ok(to))) if from < to => Ok(StepRange(from..to)),
            _ => Err(format!("{text} is not a range of steps such as 1..11")),
        }
    }
}

impl fmt::Display for StepRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.0.start, self.0.end)
    }
}

//! The checks of each key's value.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;

use chimera_core::engine::ParamRules;
use chimera_core::lower::Hoist;
use chimera_core::model::RopeScaling;
use chimera_core::notation::nearest;
use chimera_core::stage::ParamPatterns;
use toml::Value;

use super::absent::absent;
use super::peers;
use crate::values::peer_values;
use crate::values::schedules;
use crate::values::schedules::Named;
use crate::values::value::Kind;
use crate::{ByteSize, DataWeights, Layout, OPTIONS, Opt, RecomputedStages, Speeds, StepRange};

/// The name of standard input and output in other programs; no file of this name is created.
const STANDARD: &str = "-";
/// Number of characters of a refused text that are shown.
const SHOWN: usize = 200;

/// Finds an option by its own name or the name in another program, with `-` or `_` between words.
pub(crate) fn option(key: &str) -> Result<&'static Opt, String> {
    let name = key.replace('_', "-");
    let is_named = |o: &&Opt| o.name == name || peers::names(o.name).any(|other| other == name);
    OPTIONS.iter().find(is_named).ok_or_else(|| {
        if let Some(hint) = absent(&name) {
            return format!("`{key}` is no key: {}", hint.replace("`--", "`"));
        }
        let meant = (key.len() <= SHOWN).then(|| OPTIONS.iter().map(|option| option.name));
        match meant.and_then(|names| nearest(key, names)) {
            Some(near) => format!("unknown key `{key}`: did you mean `{near}`?"),
            None => format!("unknown key `{}`", shown(key)),
        }
    })
}

/// Checks `value` and converts it to the type of the option.
pub(crate) fn check(option: &Opt, value: Value) -> Result<Value, String> {
    let Opt { name: key, kind, .. } = option;
    let said = value.to_string();
    let value = kind.typed(value).map_err(|error| match kind {
        Kind::Whole(..) | Kind::Real(..) => {
            format!("`{key}` is {}; it must be {kind}", shown(&said))
        }
        Kind::Flag | Kind::Text(_) | Kind::Path | Kind::Paths => {
            format!("`{key}`: {}", shown(&error))
        }
        _ => format!("`{key}`: {}; it must be {kind}", shown(&error)),
    })?;
    if let Some(meant) = value.as_str().and_then(|text| peer_values::meant(key, text)) {
        return Err(format!("`{key}` is {value}: {meant}"));
    }
    if !kind.holds(&value) {
        if let (Kind::Schedule, Some(name)) = (kind, value.as_str())
            && name.len() <= SHOWN
            && let Some(meant) = schedules::meant(name)
        {
            return Err(format!("`{key}` is {value}: {meant}"));
        }
        let shown = shown(&value.to_string()).into_owned();
        let why = value.as_str().and_then(|text| match kind {
            Kind::Layout => {
                let why = text.parse::<Layout>().err()?;
                Some(format!("{why}; or choose balanced, auto or uniform"))
            }
            Kind::Weights => text.parse::<DataWeights>().err(),
            Kind::Path if text == STANDARD => {
                Some("name a file or folder, not standard input or output (`./-` is one that is called so)".into())
            }
            _ => None,
        });
        return Err(match why {
            Some(why) => format!("`{key}` is {shown}: {why}"),
            None => format!("`{key}` is {shown}; it must be {kind}"),
        });
    }
    Ok(value)
}

/// Returns a text, or the beginning of a long one.
fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

impl Kind {
    /// Returns true if a value of this kind is in its range.
    pub fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Kind::Whole(least, most), Value::Integer(n)) => (least..=most).contains(&n),
            (Kind::Real(least, most), Value::Float(x)) => (least..=most).contains(&x),
            (Kind::Words(words), Value::String(word)) => words().contains(&word.as_str()),
            (Kind::Schedule, Value::String(name)) => name.parse::<Named>().is_ok(),
            (Kind::Hoist, Value::String(text)) => text.parse::<Hoist>().is_ok(),
            (Kind::Layout, Value::String(text)) => text.parse::<Layout>().is_ok(),
            (Kind::Stages, Value::String(text)) => text.parse::<RecomputedStages>().is_ok(),
            (Kind::Speeds, Value::String(text)) => text.parse::<Speeds>().is_ok(),
            (Kind::Bytes, Value::String(text)) => text.parse::<ByteSize>().is_ok(),
            (Kind::Weights, Value::String(text)) => text.parse::<DataWeights>().is_ok(),
            (Kind::RopeScaling, Value::String(text)) => text.parse::<RopeScaling>().is_ok(),
            (Kind::ParamRules, Value::String(text)) => text.parse::<ParamRules>().is_ok(),
            (Kind::ParamPatterns, Value::String(text)) => text.parse::<ParamPatterns>().is_ok(),
            (Kind::Steps, Value::String(text)) => text.parse::<StepRange>().is_ok(),
            (Kind::Loopback, Value::String(text)) => {
                text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
            }
            (Kind::Text(_), Value::String(text)) => !text.is_empty(),
            (Kind::Path, Value::String(path)) => !path.is_empty() && path != STANDARD,
            (Kind::Paths, Value::Array(paths)) => {
                paths.iter().all(|path| path.as_str().is_some_and(|path| !path.is_empty()))
            }
            (kind, _) => matches!(kind, Kind::Flag),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Whole(0, i64::MAX) => write!(f, "a whole number from 0 to 2^63 - 1"),
            Kind::Whole(least, most) => write!(f, "a whole number from {least} to {most}"),
            Kind::Real(least, most) if *most > 1e3 => {
                write!(f, "a number from {least} to {most:e}")
            }
            Kind::Real(least, most) => write!(f, "a number from {least} to {most}"),
            Kind::Words(words) => write!(f, "one of {}", words().join(", ")),
            Kind::Schedule => {
                let names = schedules::names().join(", ");
                write!(f, "one of {names}, or a file that ends in .csv or .json")
            }
            Kind::RopeScaling => {
                let names = "none, or linear, dynamic, yarn or llama3 with numbers";
                write!(f, "{names}, such as linear:factor=2 or yarn:factor=4,original=4096")
            }
            Kind::ParamRules => {
                write!(f, "rules such as `*.bias: lr=2; wte.*: lr=0.1, weight-decay=0`")
            }
            Kind::ParamPatterns => write!(f, "patterns of names such as `wte.*; h.0.*`"),
            Kind::Hoist => write!(f, "on-demand, auto or a number of cells"),
            Kind::Layout => {
                write!(
                    f,
                    "balanced, auto, uniform, or the layers of each stage such as E3T|4T|4T|3TH"
                )
            }
            Kind::Stages => {
                write!(f, "all, auto, or numbers of stages such as 0,2-3, 0-1,2:selective or 0,1:3")
            }
            Kind::Speeds => write!(f, "speeds from 0.001 to 1000, such as 1,1,0.5,1"),
            Kind::Bytes => write!(f, "a number of bytes such as 25MiB, 1GB or 4096"),
            Kind::Weights => write!(f, "weights whose sum is 1, such as 0.7,0.3"),
            Kind::Steps => write!(f, "a range of steps such as 1..11"),
            Kind::Loopback => {
                write!(f, "an address of this machine alone, such as 127.0.0.1:9464")
            }
            Kind::Flag => write!(f, "true or false"),
            Kind::Text(_) | Kind::Path | Kind::Paths => write!(f, "a text that is not empty"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, value: Value) -> Result<Value, String> {
        super::check(option(key)?, value)
    }

    #[test]
    fn a_misspelt_key_names_the_nearest() {
        for (key, meant) in [
            ("dept", "depth"),
            ("microbatches", "micro-batches"),
            ("micro-batch", "micro-batches"),
            ("weigth-decay", "weight-decay"),
        ] {
            let refusal = check(key, Value::Integer(1)).unwrap_err();
            assert_eq!(refusal, format!("unknown key `{key}`: did you mean `{meant}`?"));
        }
    }

    #[test]
    fn names_of_other_programs_and_underscores_are_known() {
        for (key, own) in [
            ("micro_batches", "micro-batches"),
            ("seq_len", "sequence"),
            ("pipeline_parallel_degree", "depth"),
        ] {
            assert_eq!(option(key).unwrap().name, own);
        }
        let refusal = option("tensor_parallel_degree").unwrap_err();
        assert!(refusal.starts_with("`tensor_parallel_degree` is no key: "), "{refusal}");
    }

    #[test]
    fn a_refused_value_names_what_is_allowed() {
        for (key, value, refusal) in [
            ("depth", Value::Integer(0), "`depth` is 0; it must be a whole number from 1 to 8192"),
            (
                "steps",
                Value::Integer(-3),
                "`steps` is -3; it must be a whole number from 1 to 1099511627776",
            ),
            (
                "decay-steps", // the first has the full rate, so one step would not decay
                Value::Integer(1),
                "`decay-steps` is 1; it must be a whole number from 2 to 1099511627776",
            ),
            ("lr", Value::Float(f64::NAN), "`lr` is nan; it must be a number from 0 to 1e30"),
            (
                "width",
                Value::String("two".into()),
                "`width` is \"two\"; it must be a whole number from 1 to 8192",
            ),
            (
                "sync",
                Value::String("late".into()),
                "`sync` is \"late\"; it must be one of at-end, eager, eager-opt, in-backward",
            ),
            (
                "reduce-precision",
                Value::String("tf32".into()),
                "`reduce-precision` is \"tf32\"; it must be one of f32, bf16",
            ),
            (
                "hoist",
                Value::String("late".into()),
                "`hoist` is \"late\"; it must be on-demand, auto or a number of cells",
            ),
            (
                "hoist",
                Value::Boolean(true),
                "`hoist`: boolean is neither word nor number; \
                 it must be on-demand, auto or a number of cells",
            ),
            ("tied", Value::Integer(1), "`tied`: invalid type: integer `1`, expected a boolean"),
        ] {
            assert_eq!(check(key, value).unwrap_err(), refusal);
        }
    }

    #[test]
    fn whole_numbers_are_good_rates() {
        assert_eq!(check("clip", Value::Integer(1)), Ok(Value::Float(1.0)));
        assert_eq!(check("hoist", Value::Integer(3)), Ok(Value::String("3".into())));
    }
}

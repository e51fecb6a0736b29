//! Which values each key may have.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;

use chimera_core::engine::{LrSchedule, NonFinite, Optimizer};
use chimera_core::lower::{Hoist, Recompute, Sync};
use chimera_core::model::{Architecture, PRESETS};
use chimera_core::schedule::Scaling;
use toml::{Table, Value};

use super::{Settings, StepRange};
use crate::auto::Where;
use crate::device::Precision;
use crate::launch::Transport;
use crate::schedules;
use crate::timetable::is_file;

/// Characters of a refused text that are shown.
const SHOWN: usize = 200;

/// `value` as the settings hold it, or why `key` cannot have it.
pub(super) fn check(key: &str, value: Value) -> Result<Value, String> {
    let keys = Settings::keys();
    if !keys.iter().any(|known| known == key) {
        let meant = nearest(key, keys.iter().map(String::as_str));
        return Err(match meant.filter(|_| key.len() <= SHOWN) {
            Some(near) => format!("unknown key `{key}`: did you mean `{near}`?"),
            None => format!("unknown key `{}`", shown(key)),
        });
    }
    let allowed = Allowed::of(key);
    let typed = Table::from_iter([(key.to_owned(), value)]).try_into::<Settings>();
    let typed = typed.map_err(|e| match &allowed {
        Allowed::Any => format!("`{key}`: {}", shown(e.message())),
        allowed => format!("`{key}`: {}; it must be {allowed}", shown(e.message())),
    })?;
    let mut table = Table::try_from(typed).map_err(|e| format!("`{key}`: {e}"))?;
    let value = table.remove(key).ok_or_else(|| format!("`{key}` has no value"))?;
    if !allowed.holds(&value) {
        if let (Allowed::Schedule(_), Some(name)) = (&allowed, value.as_str())
            && name.len() <= SHOWN
            && let Some(meant) = schedules::meant(name)
        {
            return Err(format!("`{key}` is {value}: {meant}"));
        }
        let value = value.to_string();
        return Err(format!("`{key}` is {}; it must be {allowed}", shown(&value)));
    }
    Ok(value)
}

/// A text, of a long one the beginning.
fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// The candidate that `word` most likely meant.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('_', "-");
    candidates.min_by_key(|candidate| {
        (!candidate.contains(&word), strsim::damerau_levenshtein(&word, candidate))
    })
}

/// The nearest candidate, if it is so like `word` that it can be what was meant.
pub(crate) fn near<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = nearest(word, candidates)?;
    let word = word.to_lowercase().replace('_', "-");
    let n_letters = word.chars().count();
    let is_part = n_letters > 2 && near.contains(&word);
    let is_like = || strsim::damerau_levenshtein(&word, near) <= n_letters.div_ceil(3);
    (is_part || is_like()).then_some(near)
}

/// The values of one key.
enum Allowed {
    Whole(i64, i64),
    Real(f64, f64),
    OneOf(Vec<&'static str>),
    Schedule(Vec<&'static str>),
    Hoisting,
    Steps,
    Loopback,
    Resume,
    Any,
}

impl Allowed {
    fn of(key: &str) -> Allowed {
        use Allowed::*;
        match key {
            "depth" | "width" | "pipes" | "chunks" | "waves" => Whole(1, 1 << 13),
            "micro-batches" | "micro-batch-size" | "in-turn" | "in-flight" | "window" => {
                Whole(1, 1 << 20)
            }
            "layers" => Whole(1, 1 << 14),
            "hidden" | "heads" => Whole(1, 1 << 20),
            "context" | "vocab" => Whole(1, 1 << 24),
            "steps" => Whole(1, 1 << 40),
            "eval-every" => Whole(0, 1 << 40),
            "peak-flops" => Real(1.0, 1e30),
            "warmup" | "save-every" | "check-replicas" => Whole(0, 1 << 40),
            "keep" => Whole(2, 1 << 20),
            "threads" => Whole(1, 1 << 10),
            "seed" => Whole(0, i64::MAX),
            "lr" | "min-lr" => Real(0.0, 1e30),
            "beta1" | "beta2" | "momentum" => Real(0.0, 0.999_999),
            "eps" => Real(1e-30, 1.0),
            "dropout" => Real(0.0, 0.9),
            "weight-decay" => Real(0.0, 1.0),
            "clip" => Real(0.0, 1e9),
            "memory-cap" => Real(0.0, 1e6),
            "timeout" | "start-timeout" => Real(0.001, 1e6),
            "search-time" => Real(0.0, 1e6),
            "placement" => OneOf(Where::ALL.map(|(name, _)| name).to_vec()),
            "model" => OneOf(Architecture::ALL.map(|(name, _)| name).to_vec()),
            "preset" => OneOf(PRESETS.iter().map(|preset| preset.name).collect()),
            "schedule" => Schedule(schedules::names()),
            "scaling" => OneOf(Scaling::ALL.map(|(name, _)| name).to_vec()),
            "recompute" => OneOf(Recompute::ALL.map(|(name, _)| name).to_vec()),
            "hoist" => Hoisting,
            "transport" => OneOf(Transport::ALL.map(|(name, _)| name).to_vec()),
            "optimizer" => OneOf(Optimizer::ALL.map(|(name, _)| name).to_vec()),
            "lr-schedule" => OneOf(LrSchedule::ALL.map(|(name, _)| name).to_vec()),
            "non-finite" => OneOf(NonFinite::ALL.map(|(name, _)| name).to_vec()),
            "trace-steps" => Steps,
            "prometheus" => Loopback,
            "resume" => Resume,
            "precision" => OneOf(Precision::ALL.map(|(name, _)| name).to_vec()),
            "sync" => OneOf(Sync::ALL.map(|(name, _)| name).to_vec()),
            _ => Any,
        }
    }

    fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Allowed::Whole(least, most), Value::Integer(n)) => (least..=most).contains(&n),
            (Allowed::Real(least, most), Value::Float(x)) => (least..=most).contains(&x),
            (Allowed::OneOf(names), Value::String(name)) => names.contains(&name.as_str()),
            (Allowed::Schedule(names), Value::String(name)) => {
                names.contains(&name.as_str()) || is_file(name)
            }
            (Allowed::Hoisting, Value::String(text)) => text.parse::<Hoist>().is_ok(),
            (Allowed::Steps, Value::String(text)) => text.parse::<StepRange>().is_ok(),
            (Allowed::Loopback, Value::String(text)) => {
                text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
            }
            (Allowed::Resume, Value::String(text)) => !text.is_empty(),
            (allowed, _) => matches!(allowed, Allowed::Any),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Whole(0, i64::MAX) => write!(f, "a whole number from 0 to 2^63 - 1"),
            Allowed::Whole(least, most) => write!(f, "a whole number from {least} to {most}"),
            Allowed::Real(least, most) if *most > 1e3 => {
                write!(f, "a number from {least} to {most:e}")
            }
            Allowed::Real(least, most) => write!(f, "a number from {least} to {most}"),
            Allowed::OneOf(names) => write!(f, "one of {}", names.join(", ")),
            Allowed::Schedule(names) => {
                write!(f, "one of {}, or a file that ends in .csv or .json", names.join(", "))
            }
            Allowed::Hoisting => write!(f, "on-demand, auto or a number of cells"),
            Allowed::Steps => write!(f, "a range of steps such as 1..11"),
            Allowed::Loopback => {
                write!(f, "an address of this machine alone, such as 127.0.0.1:9464")
            }
            Allowed::Resume => write!(f, "auto or the folder of a checkpoint"),
            Allowed::Any => write!(f, "anything"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_names_the_nearest() {
        for (key, meant) in [
            ("dept", "depth"),
            ("micro_batches", "micro-batches"),
            ("microbatches", "micro-batches"),
            ("batch-size", "micro-batch-size"),
            ("weigth-decay", "weight-decay"),
        ] {
            let refusal = check(key, Value::Integer(1)).unwrap_err();
            assert_eq!(refusal, format!("unknown key `{key}`: did you mean `{meant}`?"));
        }
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
            ("lr", Value::Float(f64::NAN), "`lr` is nan; it must be a number from 0 to 1e30"),
            (
                "width",
                Value::String("two".into()),
                "`width`: invalid type: string \"two\", expected i64; \
                 it must be a whole number from 1 to 8192",
            ),
            (
                "sync",
                Value::String("late".into()),
                "`sync` is \"late\"; it must be one of at-end, eager, eager-opt",
            ),
            (
                "hoist",
                Value::String("late".into()),
                "`hoist` is \"late\"; it must be on-demand, auto or a number of cells",
            ),
            (
                "hoist",
                Value::Boolean(true),
                "`hoist`: boolean is no word and no number; \
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

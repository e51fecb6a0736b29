//! What goes by the name of a schedule on the command line and in settings: those of the table, and `auto`.

use chimera_core::schedule::{SCHEDULES, Schedule, find};

use crate::auto::AUTO;
use crate::settings::near;

/// All names, aliases after the name that they stand for, `auto` last.
pub fn names() -> Vec<&'static str> {
    let names = SCHEDULES.iter().map(|s| [&[s.name()], s.aliases()].concat());
    names.flatten().chain([AUTO]).collect()
}

/// The schedule of the table with a name or alias.
///
/// # Errors
/// [`Unknown`].
pub fn named(name: &str) -> Result<&'static dyn Schedule, Unknown> {
    find(name).map_err(|_| Unknown(name.to_string()))
}

/// A name that no schedule has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown schedule `{0}`: {hint}", hint = hint(.0))]
pub struct Unknown(pub String);

fn hint(name: &str) -> String {
    meant(name).unwrap_or_else(|| format!("choose one of {}", names().join(", ")))
}

/// The question whether another name was meant, if one is like it.
pub(crate) fn meant(name: &str) -> Option<String> {
    let near = near(name, names().into_iter())?;
    Some(format!("did you mean `{near}`? `chimera schedule list` has them all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_told_the_nearest() {
        for (name, meant) in [
            ("1fb1", "1f1b"),
            ("chimer", "chimera"),
            ("chimaera", "chimera"),
            ("zbv", "zb-v"),
            ("ZB_H2", "zb-h2"),
            ("pipedream-2b", "pipedream-2bw"),
            ("dapel", "dapple"),
            ("atuo", "auto"),
        ] {
            let unknown = named(name).err().expect("no schedule").to_string();
            let hint = format!("unknown schedule `{name}`: did you mean `{meant}`? ");
            assert!(unknown.starts_with(&hint), "{unknown}");
        }
        for name in ["", "nothing", "x", "schedule"] {
            let unknown = named(name).err().expect("no schedule").to_string();
            assert!(unknown.contains(": choose one of gpipe, dapple, 1f1b, "), "{unknown}");
            assert!(unknown.ends_with(", auto"), "{unknown}");
        }
    }
}

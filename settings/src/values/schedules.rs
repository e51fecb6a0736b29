//! Names of schedules on the command line and in settings, with the options that they read: those
//! of the table, `auto`, and files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use chimera_core::notation::near;
use chimera_core::schedule::{Parameter, SCHEDULES, Schedule, find};
use chimera_core::search::{AUTO, Where};

use crate::values::peer_values;

/// The schedule of a single worker, which has no pipeline: it alternates forward and backward.
pub const ALONE: &str = "1f1b";

/// Options that only the search reads.
const OF_AUTO: [&str; 6] =
    ["placement", "own-placement", "weight-copies", "max-chunks", "search-time", "search-seed"];

/// A schedule by name.
#[derive(Clone)]
pub enum Named {
    /// A schedule of the table.
    Schedule(&'static dyn Schedule),
    /// The timetable in a file.
    File(PathBuf),
    /// The shortest order that a search finds.
    Auto,
}

impl Named {
    /// Returns the parameters that the schedule reads. A file and a search read none.
    pub fn reads(&self) -> &'static [Parameter] {
        match self {
            Named::Schedule(schedule) => schedule.reads(),
            Named::File(_) | Named::Auto => &[],
        }
    }
}

impl FromStr for Named {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Named, Unknown> {
        match find(name) {
            Ok(schedule) => Ok(Named::Schedule(schedule)),
            Err(_) if name.eq_ignore_ascii_case(AUTO) => Ok(Named::Auto),
            Err(_) if is_file(name) => Ok(Named::File(name.into())),
            Err(_) => Err(Unknown(name.to_string())),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Schedule(schedule) => f.pad(schedule.name()),
            Named::File(path) => path.display().fmt(f),
            Named::Auto => f.pad(AUTO),
        }
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.to_string() == other.to_string()
    }
}

/// Returns true if `name` is a file rather than a schedule: it ends in `.json` or `.csv`.
pub fn is_file(name: &str) -> bool {
    let ending = Path::new(name).extension().unwrap_or_default();
    ["json", "csv"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// Lists all names, with aliases after the main name and `auto` last.
pub fn names() -> Vec<&'static str> {
    let names = SCHEDULES.iter().map(|s| [&[s.name()], s.aliases()].concat());
    names.flatten().chain([AUTO]).collect()
}

/// An unknown name of a schedule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown schedule `{0}`: {hint}", hint = hint(.0))]
pub struct Unknown(pub String);

fn hint(name: &str) -> String {
    meant(name).unwrap_or_else(|| format!("choose one of {}", names().join(", ")))
}

/// Asks whether a similar name was meant, if there is one.
pub(crate) fn meant(name: &str) -> Option<String> {
    if let Some(tip) = peer_values::meant("schedule", name) {
        return Some(format!("{tip} `chimera schedule list` has them all"));
    }
    let near = near(name, names().into_iter())?;
    Some(format!("did you mean `{near}`? `chimera schedule list` has them all"))
}

/// Returns warnings about those options in `given` that have no effect on a schedule, or on `auto`
/// at `place`. Options that do not shape schedules are ignored.
pub fn unread<'a>(
    schedule: &Named,
    place: Where,
    given: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let (label, reads) = match schedule {
        Named::Auto => (format!("{AUTO} on {place}"), place.reads()),
        Named::Schedule(known) => (known.name().to_string(), known.reads()),
        Named::File(path) => (path.display().to_string(), &[][..]),
    };
    let tell = |option| {
        if option == "border" && reads.contains(&Parameter::Window) {
            return Some(format!(
                "`border` has no effect: {label} has none between the steps of its window"
            ));
        }
        let others = match Parameter::named(option) {
            Some(parameter) if !reads.contains(&parameter) => readers(parameter),
            None if OF_AUTO.contains(&option) && *schedule != Named::Auto => vec![AUTO.to_string()],
            _ => return None,
        };
        let (verb, others) = (if others.len() == 1 { "does" } else { "do" }, listed(&others));
        Some(format!("`{option}` has no effect: {label} does not read it, {others} {verb}"))
    };
    given.into_iter().filter_map(tell).collect()
}

/// Lists the schedules that read a parameter.
fn readers(parameter: Parameter) -> Vec<String> {
    let schedules = SCHEDULES.iter().filter(|schedule| schedule.reads().contains(&parameter));
    let mut readers: Vec<_> = schedules.map(|schedule| schedule.name().to_string()).collect();
    let places = Where::ALL.iter().filter(|(_, place)| place.reads().contains(&parameter));
    let places: Vec<_> = places.map(|(name, _)| format!("{AUTO} on {name}")).collect();
    if places.len() == Where::ALL.len() {
        readers.push(AUTO.to_string())
    } else {
        readers.extend(places)
    }
    readers
}

/// Joins words as in `a, b and c`.
fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_effect_is_told_with_who_reads_it() {
        let named = |name: &str| name.parse::<Named>().expect("known");
        let told = |schedule, place, given: &str| unread(&named(schedule), place, given.split(' '));
        assert_eq!(
            told("1f1b", Where::Line, "depth in-turn pipes search-time hidden window"),
            [
                "`pipes` has no effect: 1f1b does not read it, chimera and auto on mirrored do",
                "`search-time` has no effect: 1f1b does not read it, auto does",
                "`window` has no effect: 1f1b does not read it, pipedream, pipedream-2bw, timeprest and pipeoptim do",
            ]
        );
        assert_eq!(
            told(AUTO, Where::Wave, "waves scaling placement pipes"),
            [
                "`pipes` has no effect: auto on wave does not read it, chimera and auto on mirrored do"
            ]
        );
        assert_eq!(
            told("mine.csv", Where::Line, "micro-batches scaling"),
            ["`scaling` has no effect: mine.csv does not read it, chimera and auto do"]
        );
        for schedule in SCHEDULES {
            let names = Parameter::ALL.iter().filter(|(_, p)| schedule.reads().contains(p));
            let own = names.map(|(name, _)| *name);
            let known = Named::Schedule(*schedule);
            assert!(unread(&known, Where::Line, own).is_empty(), "{known}");
        }
    }

    #[test]
    fn a_file_is_known_by_its_ending() {
        for file in ["a.csv", "x/y.CSV", "a.b.json", "./a.Json"] {
            assert!(is_file(file), "{file}");
        }
        for schedule in ["zb-h1", "csv", ".csv", "a.csv.txt", "json", ""] {
            assert!(!is_file(schedule), "{schedule}");
        }
    }

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
            let unknown = name.parse::<Named>().expect_err("no schedule").to_string();
            let hint = format!("unknown schedule `{name}`: did you mean `{meant}`? ");
            assert!(unknown.starts_with(&hint), "{unknown}");
        }
        for name in ["", "nothing", "x", "schedule"] {
            let unknown = name.parse::<Named>().expect_err("no schedule").to_string();
            assert!(unknown.contains(": choose one of gpipe, 1f1b, dapple, "), "{unknown}");
            assert!(unknown.ends_with(", auto"), "{unknown}");
        }
    }
}

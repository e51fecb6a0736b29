//! What goes by the name of a schedule on the command line and in settings, and which options it reads: those of the
//! table, `auto`, files.

use chimera_core::schedule::{Parameter, SCHEDULES, Schedule, find};

use crate::auto::{AUTO, Where};
use crate::settings::near;
use crate::timetable::is_file;

/// Options of the search alone.
const OF_AUTO: [&str; 3] = ["placement", "search-time", "search-seed"];

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

/// What to tell of those options `given`, by their names, that have no effect on a schedule, or on `auto` at `place`.
/// Options that shape no schedule pass.
pub fn unread<'a>(
    schedule: &str,
    place: Where,
    given: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let (label, reads) = match named(schedule) {
        _ if schedule == AUTO => (format!("{AUTO} on {place}"), place.reads()),
        Ok(known) => (schedule.to_string(), known.reads()),
        Err(_) if is_file(schedule) => (schedule.to_string(), &[][..]),
        Err(_) => return Vec::new(),
    };
    let tell = |option| {
        let others = match Parameter::named(option) {
            Some(parameter) if !reads.contains(&parameter) => readers(parameter),
            None if OF_AUTO.contains(&option) && schedule != AUTO => vec![AUTO.to_string()],
            _ => return None,
        };
        let (verb, others) = (if others.len() == 1 { "does" } else { "do" }, listed(&others));
        Some(format!("`{option}` has no effect: {label} does not read it, {others} {verb}"))
    };
    given.into_iter().filter_map(tell).collect()
}

/// Who reads a parameter.
fn readers(parameter: Parameter) -> Vec<String> {
    let schedules = SCHEDULES.iter().filter(|schedule| schedule.reads().contains(&parameter));
    let mut readers: Vec<_> = schedules.map(|schedule| schedule.name().to_string()).collect();
    let places = Where::ALL.iter().filter(|(_, place)| place.reads().contains(&parameter));
    let places: Vec<_> = places.map(|(name, _)| format!("{AUTO} on {name}")).collect();
    match places.len() == Where::ALL.len() {
        true => readers.push(AUTO.to_string()),
        false => readers.extend(places),
    }
    readers
}

/// `a, b and c`.
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
        let told = |schedule, place, given: &str| unread(schedule, place, given.split(' '));
        assert_eq!(
            told("1f1b", Where::Line, "depth in-turn pipes search-time hidden window"),
            [
                "`pipes` has no effect: 1f1b does not read it, chimera and auto on mirrored do",
                "`search-time` has no effect: 1f1b does not read it, auto does",
                "`window` has no effect: 1f1b does not read it, pipedream and pipedream-2bw do",
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
        assert!(told("nothing", Where::Line, "pipes").is_empty());
        for schedule in SCHEDULES {
            let names = Parameter::ALL.iter().filter(|(_, p)| schedule.reads().contains(p));
            let own = names.map(|(name, _)| *name);
            assert!(unread(schedule.name(), Where::Line, own).is_empty(), "{}", schedule.name());
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
            let unknown = named(name).err().expect("no schedule").to_string();
            let hint = format!("unknown schedule `{name}`: did you mean `{meant}`? ");
            assert!(unknown.starts_with(&hint), "{unknown}");
        }
        for name in ["", "nothing", "x", "schedule"] {
            let unknown = named(name).err().expect("no schedule").to_string();
            assert!(unknown.contains(": choose one of gpipe, 1f1b, dapple, "), "{unknown}");
            assert!(unknown.ends_with(", auto"), "{unknown}");
        }
    }
}

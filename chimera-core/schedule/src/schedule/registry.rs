//! Schedules by name: those of this crate, and a caller's own.

use super::Schedule;
use crate::ir::notation::near;

/// Every schedule, in the order in which they are listed.
pub const SCHEDULES: &[&dyn Schedule] = &[
    &super::gpipe::GPipe,
    &super::dapple::Dapple,
    &super::seq1f1b::Seq1f1b,
    &super::gems::Gems,
    &super::chimera::Chimera,
    &super::interleaved::Interleaved,
    &super::zb_h1::ZbH1,
    &super::zb_h2::ZbH2,
    &super::zb_v::ZbV,
    &super::v_half::VHalf,
    &super::v_min::VMin,
    &super::hanayo::Hanayo,
    &super::dualpipe::DualPipe,
    &super::dualpipe_v::DualPipeV,
    &super::mixpipe::MixPipe,
    &super::pipedream::PipeDream,
    &super::pipedream_2bw::PipeDream2Bw,
    &super::timeprest::TiMePReSt,
    &super::pipeoptim::PipeOptim,
];

/// Schedules to choose from by name.
#[derive(Clone)]
pub struct Schedules(Vec<&'static dyn Schedule>);

impl Schedules {
    /// The schedules of this crate.
    pub fn built_in() -> Schedules {
        Schedules(SCHEDULES.to_vec())
    }

    /// Adds a schedule, which takes precedence over others of the same name.
    pub fn with(mut self, own: &'static dyn Schedule) -> Schedules {
        self.0.insert(0, own);
        self
    }

    /// Finds the schedule with a name or alias.
    ///
    /// # Errors
    /// [`UnknownSchedule`].
    pub fn find(&self, name: &str) -> Result<&'static dyn Schedule, UnknownSchedule> {
        find_in(&self.0, name)
    }
}

/// Finds this crate's schedule with a name or alias.
///
/// # Errors
/// [`UnknownSchedule`].
pub fn find(name: &str) -> Result<&'static dyn Schedule, UnknownSchedule> {
    find_in(SCHEDULES, name)
}

fn find_in(
    schedules: &[&'static dyn Schedule],
    name: &str,
) -> Result<&'static dyn Schedule, UnknownSchedule> {
    let is_named = |s: &&&dyn Schedule| names(**s).any(|known| known.eq_ignore_ascii_case(name));
    schedules.iter().find(is_named).copied().ok_or_else(|| UnknownSchedule {
        name: name.to_string(),
        known: schedules.iter().flat_map(|s| names(*s)).collect(),
    })
}

/// The name of a schedule and its aliases.
fn names(schedule: &dyn Schedule) -> impl Iterator<Item = &'static str> {
    std::iter::once(schedule.name()).chain(schedule.aliases().iter().copied())
}

/// A name that no schedule has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown schedule `{name}`: {hint}", hint = hint(name, known))]
pub struct UnknownSchedule {
    /// The name.
    pub name: String,
    /// Names and aliases of the known schedules.
    pub known: Vec<&'static str>,
}

fn hint(name: &str, known: &[&'static str]) -> String {
    match near(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("choose one of {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::timetable::Timetable;
    use crate::schedule::{Citation, Shape, Unfit};

    /// GPipe under another name.
    struct Own;

    impl Schedule for Own {
        fn name(&self) -> &'static str {
            "own"
        }

        fn about(&self) -> &'static str {
            "all forwards, then all backwards"
        }

        fn source(&self) -> Citation {
            Citation { paper: "none", place: "here" }
        }

        fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
            find("gpipe").expect("known").timetable(shape)
        }
    }

    #[test]
    fn a_callers_schedule_is_found_beside_ours() {
        let schedules = Schedules::built_in().with(&Own);
        for name in ["own", "OWN", "chimera"] {
            let schedule = schedules.find(name).expect("known");
            assert_eq!(schedule.name(), name.to_lowercase());
            assert!(schedule.timetable(&Shape::new(2, 4)).is_ok());
        }
        let unknown = schedules.find("none").err().expect("no schedule");
        assert!(
            unknown.to_string().starts_with("unknown schedule `none`: choose one of own, gpipe, ")
        );
        assert!(find("own").is_err());
    }

    #[test]
    fn pytorchs_names_are_known() {
        for (name, known) in [
            ("GPipe", "gpipe"),
            ("1F1B", "1f1b"),
            ("DAPPLE", "1f1b"),
            ("Interleaved1F1B", "interleaved"),
            ("ZBVZeroBubble", "zb-v"),
            ("DualPipeV", "dualpipe-v"),
        ] {
            assert_eq!(find(name).map(|s| s.name()).ok(), Some(known), "{name}");
        }
    }

    #[test]
    fn no_two_schedules_have_a_name_in_common() {
        let mut all: Vec<_> =
            SCHEDULES.iter().flat_map(|s| names(*s)).map(str::to_lowercase).collect();
        let n_names = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), n_names);
    }
}

//! Members that are slower or faster than the layout assumes, by the steps of the run.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::Result;
use chimera_core::engine::StepReport;

use super::member_list::MemberList;
use crate::cli::commands::train::ranks::Balance;
use crate::cli::parts::terminal::console::{duration, tell, warn};
use crate::cli::parts::terminal::message::shown;
use crate::plan::Relaid;
use crate::run::Run;
use crate::settings::Speeds;

/// First steps of a run, which are not judged.
const WARM_UP: usize = 5;
/// Steps that are judged together, by each rank's median.
const JUDGED: usize = 20;
/// A speed is other than the layout assumes if it differs by more than this factor.
const OTHER: f64 = 1.25;
/// The least gain of another layout: the time of a step before, over the time after.
const MIN_GAIN: f64 = 1.1;
/// Steps for which a run keeps a layout, and between two messages.
const KEPT: u64 = 100;

/// Watches the speeds of members, and decides whether the layout is made again.
pub(super) struct Watched {
    /// The machines by rank.
    names: Vec<String>,
    list: Arc<MemberList>,
    /// Whether the layout may be made again.
    rebalances: bool,
    began: Instant,
    state: Mutex<State>,
    folder: OnceLock<PathBuf>,
}

/// The steps so far.
#[derive(Default)]
struct State {
    window: Window,
    /// The rates of the ranks in the first steps that were judged.
    first: Option<Vec<f64>>,
    /// Seconds from the beginning to the end of the first step.
    start_s: Option<f64>,
    /// The step from which messages are printed again.
    silent_until: u64,
    /// The speeds for the next layout, once it is chosen.
    speeds: Option<String>,
}

/// The times of the last steps.
#[derive(Default)]
struct Window {
    n_seen: usize,
    /// The seconds of a step, and those for which each rank was busy.
    steps: VecDeque<(f64, Vec<f64>)>,
}

/// Medians over some steps.
#[derive(PartialEq, Debug)]
struct Medians {
    step_s: f64,
    busy_s: Vec<f64>,
}

impl Window {
    /// Adds a step. Returns the medians of the last steps, as often as there are as many new ones.
    fn add(&mut self, step_s: f64, busy_s: Vec<f64>) -> Option<Medians> {
        self.n_seen += 1;
        let is_other = self.steps.back().is_some_and(|(_, last)| last.len() != busy_s.len());
        if self.n_seen <= WARM_UP || is_other {
            self.steps.clear(); // the ranks of a step are others after a death
            return None;
        }
        self.steps.push_back((step_s, busy_s));
        if self.steps.len() < JUDGED {
            return None;
        }
        let n_ranks = self.steps[0].1.len();
        let of_rank = |rank| median(self.steps.iter().map(|(_, busy_s)| busy_s[rank]));
        let busy_s = (0..n_ranks).map(of_rank).collect();
        let step_s = median(self.steps.iter().map(|(step_s, _)| *step_s));
        self.steps.clear();
        Some(Medians { step_s, busy_s })
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Watched {
    pub(super) fn new(names: Vec<String>, list: Arc<MemberList>, rebalances: bool) -> Watched {
        let (state, folder) = (Mutex::default(), OnceLock::new());
        Watched { names, list, rebalances, began: Instant::now(), state, folder }
    }

    /// Returns the folder of the run, and the speeds for its next layout.
    pub(super) fn decided(self) -> Option<(PathBuf, String)> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        Some((self.folder.into_inner()?, state.speeds?))
    }

    /// Judges some steps. Returns true if the run is to stop for another layout.
    fn judge(
        &self,
        state: &mut State,
        run: &Run,
        (step, medians): (u64, &Medians),
    ) -> Result<bool> {
        let rates = run.rates(&medians.busy_s)?;
        let assumed: Vec<f64> = match &run.config().schedule.speeds {
            Some(speeds) => speeds.of_workers(rates.len(), 1),
            None => vec![1.0; rates.len()],
        };
        let first = state.first.get_or_insert_with(|| rates.clone());
        let Some(what) = other_speeds(&self.names, first, &rates, &assumed) else {
            return Ok(false);
        };
        if step < state.silent_until {
            return Ok(false);
        }
        let relaid = run.relaid(&rates)?;
        let left = run.config().training.steps.saturating_sub(step + 1);
        let start_s = state.start_s.unwrap_or(0.0);
        let then = verdict(&relaid, left as f64 * medians.step_s, start_s);
        let is_due = self.rebalances && then.is_ok() && left > 0;
        state.silent_until = step + KEPT;
        match then {
            Ok(gain) if is_due => {
                state.speeds = Some(Speeds::measured(&rates).to_string());
                tell(format_args!("{what}\n{gain}: the run stops and goes on with it"));
            }
            Ok(gain) => warn(&format!("{what}; {gain}: `chimera host --rebalance` takes it")),
            Err(why) => warn(&format!("{what}; {why}")),
        }
        Ok(is_due)
    }
}

impl Balance for Watched {
    fn begun(&self, folder: &Path) {
        let _ = self.folder.set(folder.to_path_buf());
        self.list.begun(folder);
    }

    fn look(&self, run: &Run, report: &StepReport) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.start_s.is_none() {
            state.start_s = Some(self.began.elapsed().as_secs_f64());
            state.silent_until = if run.first_step() > 0 { report.step + KEPT } else { 0 };
        }
        let busy = report.ranks.iter().map(|load| report.step_s * (1.0 - load.bubble_ratio));
        let Some(medians) = state.window.add(report.step_s, busy.collect()) else { return false };
        if medians.busy_s.len() != self.names.len() {
            return false; // some ranks have died, and the others train on
        }
        self.judge(&mut state, run, (report.step, &medians)).unwrap_or_else(|error| {
            warn(&format!("speeds are not watched any more: {error:#}"));
            state.silent_until = u64::MAX;
            false
        })
    }
}

/// Describes the ranks whose speeds are not as the layout assumes, if there are any. Speeds are
/// relative to the fastest rank.
fn other_speeds(names: &[String], first: &[f64], rates: &[f64], assumed: &[f64]) -> Option<String> {
    let fastest = |all: &[f64]| all.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let (of_now, of_layout) = (fastest(rates), fastest(assumed));
    let mut all = Vec::new();
    for (rank, name) in names.iter().enumerate().take(rates.len()) {
        let (now, layout) = (rates[rank] / of_now, assumed[rank] / of_layout);
        if (now / layout).max(layout / now) <= OTHER {
            continue;
        }
        let slower = first.get(rank).map_or(1.0, |first| first / rates[rank]);
        let became = match slower {
            slower if slower > OTHER => {
                format!(", its ops take {slower:.1} times as long as at first")
            }
            _ => String::new(),
        };
        all.push(format!(
            "rank {rank} ({}) has {now:.2} of the speed of the fastest rank{became}; the layout is for {layout:.2}",
            shown(name)
        ));
    }
    (!all.is_empty()).then(|| all.join("\n"))
}

/// Describes the gain of another layout, or the reason to keep the one that is there. The steps that
/// are left take `left_s`, and a new start `start_s`.
fn verdict(relaid: &Relaid, left_s: f64, start_s: f64) -> Result<String, String> {
    let Relaid { layout, gain } = relaid;
    let saved_s = left_s * (1.0 - 1.0 / gain);
    if *gain < MIN_GAIN {
        return Err("no other layout makes a step much shorter".into());
    }
    if saved_s <= start_s {
        let (saved, start) = (duration(saved_s.max(0.0)), duration(start_s));
        return Err(format!(
            "layout {layout} would save {saved} of the steps that are left, and a new start takes {start}"
        ));
    }
    Ok(format!("layout {layout} makes a step {gain:.2} times as fast by simulation"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the steps after which there is a judgement, and the medians of rank 1.
    fn judged(n: usize, busy_of_1: impl Fn(usize) -> f64) -> Vec<(usize, f64)> {
        let mut window = Window::default();
        let mut add = |step| {
            let medians = window.add(4.0, vec![1.0, busy_of_1(step)])?;
            assert_eq!((medians.step_s, medians.busy_s[0]), (4.0, 1.0));
            Some((step, medians.busy_s[1]))
        };
        (0..n).filter_map(&mut add).collect()
    }

    #[test]
    fn steps_are_judged_by_twenties_after_the_first_ones() {
        assert_eq!(judged(70, |_| 2.0), [(24, 2.0), (44, 2.0), (64, 2.0)]);
    }

    #[test]
    fn a_hiccup_does_not_count() {
        assert_eq!(judged(30, |step| if step % 20 < 9 { 9.0 } else { 1.0 }), [(24, 1.0)]);
    }

    #[test]
    fn steps_of_fewer_ranks_are_not_mixed_with_others() {
        let mut window = Window::default();
        let judged = (0..30).filter_map(|step| {
            let n_ranks = if step < 20 { 2 } else { 1 };
            window.add(1.0, vec![1.0; n_ranks])
        });
        assert_eq!(judged.count(), 0);
    }

    fn words(first: [f64; 2], now: [f64; 2], assumed: [f64; 2]) -> Option<String> {
        let names = ["alpha", "beta"].map(String::from);
        other_speeds(&names, &first, &now, &assumed)
    }

    #[test]
    fn a_member_that_became_slow_is_named() {
        let text = words([3.0, 3.0], [3.0, 1.2], [1.0, 1.0]).expect("it is slow");
        assert_eq!(
            text,
            "rank 1 (beta) has 0.40 of the speed of the fastest rank, its ops take 2.5 times as long as \
             at first; the layout is for 1.00"
        );
        let text = words([3.0, 1.2], [3.0, 3.0], [1.0, 0.4]).expect("it is fast again");
        assert!(
            text.ends_with("has 1.00 of the speed of the fastest rank; the layout is for 0.40")
        );
    }

    /// All became slow alike, or as slow as the layout assumes.
    #[test]
    fn speeds_that_the_layout_assumes_are_not() {
        assert_eq!(words([3.0, 3.0], [1.0, 0.9], [1.0, 1.0]), None);
        assert_eq!(words([3.0, 3.0], [3.0, 1.2], [1.0, 0.4]), None);
    }

    #[test]
    fn a_layout_must_gain_more_than_a_new_start_takes() {
        let relaid = |gain| Relaid { layout: "3,1".parse().expect("a layout"), gain };
        assert!(verdict(&relaid(1.09), 1e6, 1.0).is_err());
        assert!(verdict(&relaid(2.0), 10.0, 6.0).is_err());
        assert!(verdict(&relaid(2.0), 10.0, 4.0).is_ok());
    }
}

//! Straggler detection: finds ranks that are slower than the others.

use chimera_core::engine::{Load, StepReport};
use chimera_core::ids::{Rank, listed};

/// A rank is slow if its busy time is more than this times the median.
const FACTOR: f64 = 1.5;
/// Number of slow steps in a row before a warning.
const N_STEPS: u64 = 20;
/// Number of steps before the warning is repeated.
const SILENCE: u64 = 1000;

/// Detects ranks that are slow for many steps.
#[derive(Default)]
pub struct Stragglers {
    /// The current streak of slow steps of each rank.
    streaks: Vec<Streak>,
    /// The step from which warnings are given again.
    silent_until: u64,
}

/// Steps in a row, with the busy seconds of a rank and of the median rank in them.
#[derive(Clone, Default)]
struct Streak {
    n_steps: u64,
    busy_s: f64,
    median_s: f64,
}

impl Stragglers {
    /// Takes the report of a step and returns a warning, if there is one.
    pub fn notice(&mut self, report: &StepReport) -> Option<String> {
        let busy = |load: &Load| report.step_s * (1.0 - load.bubble_ratio);
        let ranks: Vec<f64> = report.ranks.iter().map(busy).collect();
        let mut sorted = ranks.clone();
        sorted.sort_by(f64::total_cmp);
        let median_s = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
        self.streaks.resize(ranks.len(), Streak::default());
        for (streak, busy_s) in self.streaks.iter_mut().zip(ranks) {
            if busy_s <= FACTOR * median_s {
                *streak = Streak::default();
                continue;
            }
            streak.n_steps += 1;
            streak.busy_s += busy_s;
            streak.median_s += median_s;
        }
        if report.step < self.silent_until {
            return None;
        }
        // The ranks of a node are slow together, whichever is the slowest in a single step.
        let streaks = (0..).map(Rank).zip(&self.streaks);
        let slow: Vec<(Rank, &Streak)> = streaks.filter(|(_, s)| s.n_steps >= N_STEPS).collect();
        let n_steps: u64 = slow.iter().map(|(_, streak)| streak.n_steps).sum();
        let mean = |of: fn(&Streak) -> f64| {
            slow.iter().map(|(_, streak)| of(streak)).sum::<f64>() / n_steps as f64
        };
        let (busy_s, median_s) = (mean(|s| s.busy_s), mean(|s| s.median_s));
        let (work, their) = match &slow[..] {
            [] => return None,
            [_] => ("works", "its"),
            _ => ("work", "their"),
        };
        let who = listed(&slow.iter().map(|(rank, _)| *rank).collect::<Vec<_>>());
        self.silent_until = report.step + SILENCE;
        Some(format!(
            "{who} {work} {busy_s:.3} s a step, the median rank {median_s:.3} s: {their} share of the model is \
             larger, or {their} machine slower"
        ))
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::engine::Recoveries;

    use super::*;

    /// A report of ranks that are busy for these times.
    fn report(step: u64, busy_s: &[f64]) -> StepReport {
        let load = |busy_s: &f64| Load { bubble_ratio: 1.0 - busy_s / 4.0, ..Load::default() };
        StepReport {
            step,
            loss: 1.0,
            has_targets: true,
            grad_norm: 1.0,
            lr: 1.0,
            step_s: 4.0,
            copy_s: 0.0,
            ranks: busy_s.iter().map(load).collect(),
            validation_loss: None,
            skipped: None,
            n_skipped: 0,
            is_bordered: false,
            n_repeated: 0,
            recoveries: Recoveries::default(),
            stop: false,
        }
    }

    /// Returns the steps with a warning, and the warnings.
    fn told<const N: usize>(steps: u64, of: impl Fn(u64) -> [f64; N]) -> Vec<(u64, String)> {
        let mut slow = Stragglers::default();
        let notice = |step| Some((step, slow.notice(&report(step, &of(step)))?));
        (0..steps).filter_map(notice).collect()
    }

    /// Four ranks, one of which works for `busy_s` and the others for a second.
    fn one_of_four(slow: usize, busy_s: f64) -> [f64; 4] {
        std::array::from_fn(|rank| if rank == slow { busy_s } else { 1.0 })
    }

    #[test]
    fn a_slow_rank_is_told_once_in_a_while() {
        let told = told(1500, |_| one_of_four(3, 2.0));
        let steps: Vec<u64> = told.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [19, 1019]);
        let words = "rank 3 works 2.000 s a step, the median rank 1.000 s: ";
        assert!(told[0].1.starts_with(words), "{told:?}");
    }

    /// It does not matter which of them is the slowest.
    #[test]
    fn all_ranks_of_a_slow_node_are_told() {
        let of = |step: u64| {
            let mut busy_s = [1.0; 9];
            busy_s[4..8].fill(1.8);
            busy_s[4 + step as usize % 4] = 2.6;
            busy_s
        };
        let told = told(100, of);
        assert_eq!(told.len(), 1, "{told:?}");
        let words = "ranks 4-7 work 2.000 s a step, the median rank 1.000 s: their share ";
        assert!(told[0].0 == 19 && told[0].1.starts_with(words), "{told:?}");
    }

    #[test]
    fn a_hiccup_is_not() {
        assert_eq!(told(500, |_| one_of_four(3, 1.4)), []);
        assert_eq!(told(500, |step| one_of_four(3, if step % 20 == 19 { 1.0 } else { 2.0 })), []);
        assert_eq!(told(500, |step| one_of_four(usize::from(step % 2 == 0), 2.0)), []);
    }
}

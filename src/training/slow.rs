//! Telling of a rank that is slower than the others.

use chimera_core::engine::{Slowest, StepReport};

/// Times the median at which a rank is slow.
const FACTOR: f64 = 1.5;
/// Steps in a row that it must be.
const N_STEPS: u64 = 20;
/// Steps after which it is told again.
const SILENCE: u64 = 1000;

/// Looks for a rank that is slow for many steps.
#[derive(Default)]
pub struct Slow {
    /// What its steps so far came to, and how many there were.
    streak: Option<(Slowest, u64)>,
    /// The step before which nothing is told.
    silent_until: u64,
}

impl Slow {
    /// Takes the report of a step; what to tell, if anything.
    pub fn notice(&mut self, report: &StepReport) -> Option<String> {
        let StepReport { step, slowest, .. } = report;
        let (mut sum, mut n) = self
            .streak
            .take()
            .filter(|(s, _)| s.rank == slowest.rank)
            .unwrap_or((Slowest { busy_s: 0.0, median_busy_s: 0.0, ..*slowest }, 0));
        if slowest.busy_s <= FACTOR * slowest.median_busy_s {
            return None;
        }
        sum.busy_s += slowest.busy_s;
        sum.median_busy_s += slowest.median_busy_s;
        n += 1;
        if n < N_STEPS || *step < self.silent_until {
            self.streak = Some((sum, n));
            return None;
        }
        self.silent_until = step + SILENCE;
        let mean = |s: f64| s / n as f64;
        Some(format!(
            "{} works {:.3} s a step, the median rank {:.3} s: its share of the model is larger, or its machine \
             slower",
            sum.rank,
            mean(sum.busy_s),
            mean(sum.median_busy_s)
        ))
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::ids::Rank;

    use super::*;

    fn report(step: u64, rank: u32, busy_s: f64) -> StepReport {
        StepReport {
            step,
            loss: 1.0,
            grad_norm: 1.0,
            lr: 1.0,
            step_s: 3.0,
            bubble_ratio: 0.0,
            bytes: 0,
            validation_loss: None,
            skipped: None,
            n_skipped: 0,
            slowest: Slowest { rank: Rank(rank), busy_s, median_busy_s: 1.0 },
            stop: false,
        }
    }

    /// The steps at which something is told.
    fn told(steps: u64, of: impl Fn(u64) -> (u32, f64)) -> Vec<(u64, String)> {
        let mut slow = Slow::default();
        let notice = |step| {
            let (rank, busy_s) = of(step);
            Some((step, slow.notice(&report(step, rank, busy_s))?))
        };
        (0..steps).filter_map(notice).collect()
    }

    #[test]
    fn a_slow_rank_is_told_once_in_a_while() {
        let told = told(1500, |_| (3, 2.0));
        let steps: Vec<u64> = told.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [19, 1019]);
        let words = "rank 3 works 2.000 s a step, the median rank 1.000 s: ";
        assert!(told[0].1.starts_with(words), "{told:?}");
    }

    #[test]
    fn a_hiccup_is_not() {
        assert_eq!(told(500, |_| (3, 1.4)), []);
        assert_eq!(told(500, |step| (3, if step % 20 == 19 { 1.0 } else { 2.0 })), []);
        assert_eq!(told(500, |step| (u32::from(step % 2 == 0), 2.0)), []);
    }
}

//! Telling of a rank that is slower than the others.

use chimera_core::engine::StepReport;
use chimera_core::ids::Rank;

/// Times the median at which a rank is slow.
const FACTOR: f64 = 1.5;
/// Steps in a row that it must be.
const N_STEPS: u64 = 20;
/// Steps after which it is told again.
const SILENCE: u64 = 1000;

/// Looks for a rank that is slow for many steps.
#[derive(Default)]
pub struct Slow {
    /// The rank, with the steps in which it was slow.
    streak: Option<Streak>,
    /// The step before which nothing is told.
    silent_until: u64,
}

/// A rank that is slow for some steps: their number, its seconds of work, and those of the median rank.
struct Streak {
    rank: Rank,
    n_steps: u64,
    busy_s: f64,
    median_s: f64,
}

impl Slow {
    /// Takes the report of a step; what to tell, if anything.
    pub fn notice(&mut self, report: &StepReport) -> Option<String> {
        let busy = |bubble_ratio: f64| report.step_s * (1.0 - bubble_ratio);
        let mut ranks: Vec<(f64, Rank)> =
            report.ranks.iter().map(|load| busy(load.bubble_ratio)).zip((0..).map(Rank)).collect();
        ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let &(busy_s, rank) = ranks.last()?;
        let (median_s, _) = ranks[(ranks.len() - 1) / 2];
        let streak = self.streak.take().filter(|streak| streak.rank == rank);
        if busy_s <= FACTOR * median_s {
            return None;
        }
        let mut streak = streak.unwrap_or(Streak { rank, n_steps: 0, busy_s: 0.0, median_s: 0.0 });
        streak.n_steps += 1;
        streak.busy_s += busy_s;
        streak.median_s += median_s;
        if streak.n_steps < N_STEPS || report.step < self.silent_until {
            self.streak = Some(streak);
            return None;
        }
        self.silent_until = report.step + SILENCE;
        let mean = |s: f64| s / streak.n_steps as f64;
        Some(format!(
            "{rank} works {:.3} s a step, the median rank {:.3} s: its share of the model is larger, or its \
             machine slower",
            mean(streak.busy_s),
            mean(streak.median_s)
        ))
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::engine::Load;

    use super::*;

    /// Of four ranks, one of which works for `busy_s` and the others for a second.
    fn report(step: u64, slow: usize, busy_s: f64) -> StepReport {
        let load = |rank| Load {
            bubble_ratio: 1.0 - if rank == slow { busy_s } else { 1.0 } / 4.0,
            bytes: 0,
        };
        StepReport {
            step,
            loss: 1.0,
            grad_norm: 1.0,
            lr: 1.0,
            step_s: 4.0,
            copy_s: 0.0,
            ranks: (0..4).map(load).collect(),
            validation_loss: None,
            skipped: None,
            n_skipped: 0,
            stop: false,
        }
    }

    /// The steps at which something is told.
    fn told(steps: u64, of: impl Fn(u64) -> (usize, f64)) -> Vec<(u64, String)> {
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
        assert_eq!(told(500, |step| (usize::from(step % 2 == 0), 2.0)), []);
    }
}

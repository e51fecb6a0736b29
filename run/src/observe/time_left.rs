//! The time that is left of a run, by its recent steps.

use std::collections::VecDeque;

/// The number of recent steps that count.
const N_RECENT: usize = 20;

/// The times of the last steps.
#[derive(Clone, Debug, Default)]
pub struct TimeLeft(VecDeque<f64>);

impl TimeLeft {
    /// Adds the seconds of a step.
    pub fn add(&mut self, step_s: f64) {
        if self.0.len() == N_RECENT {
            self.0.pop_front();
        }
        self.0.push_back(step_s);
    }

    /// Returns the seconds that this number of steps takes at the mean speed of the recent ones;
    /// `None` before the first.
    pub fn of(&self, n_steps: u64) -> Option<f64> {
        let mean = self.0.iter().sum::<f64>() / self.0.len() as f64;
        (!self.0.is_empty()).then_some(n_steps as f64 * mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_steps_count() {
        let mut left = TimeLeft::default();
        assert_eq!(left.of(3), None);
        left.add(100.0);
        assert_eq!(left.of(3), Some(300.0));
        (0..N_RECENT).for_each(|_| left.add(2.0));
        assert_eq!((left.of(3), left.of(0)), (Some(6.0), Some(0.0)));
    }
}

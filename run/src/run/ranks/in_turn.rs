//! The k of kFkB, the number of forwards in turn, adapted during training (Wang et al.,
//! Ada-Grouper, 2023).
//!
//! A larger k overlaps messages with the forwards of its group, and holds more activations. The
//! time of messages is unknown and changes. So every `adapt-every` steps the neighbours of the
//! present k are tried, and the k with the shortest steps is kept. All ranks use the times that
//! they have agreed on, so they make the same choice. Weights do not depend on k, to the bit, since
//! gradients are added in the order of micro-batches.

use chimera_core::program::Program;
use chimera_plan::plan::Course;

/// Steps of each trial; the first does not count.
const TRIED: usize = 4;
/// The share of a step's time by which another k must be shorter: less is noise.
const GAIN: f64 = 0.02;

/// The choice among several programs for the steps of a run.
pub(crate) struct InTurn<'r> {
    /// The programs, ascending by k.
    programs: &'r [(u32, Program)],
    /// Index of the program that the settings name.
    given: usize,
    trials: Trials,
}

impl<'r> InTurn<'r> {
    /// Returns the choice, if the settings ask for it.
    pub(crate) fn of(course: &'r Course) -> Option<InTurn<'r>> {
        let programs = &course.in_turn;
        let k = course.config.shape().n_in_turn;
        let given = programs.iter().position(|(other, _)| *other == k)?;
        let trials = Trials::new(course.config.schedule.adapt_every, programs.len(), given);
        Some(InTurn { programs, given, trials })
    }

    /// Returns the program of the next step.
    pub(crate) fn program(&self) -> &'r Program {
        &self.programs[self.trials.next()].1
    }

    /// Returns true if the next step is trained by the program that the settings name.
    pub(crate) fn is_given(&self) -> bool {
        self.trials.next() == self.given
    }

    /// Returns the present k.
    pub(crate) fn k(&self) -> u32 {
        self.programs[self.trials.at].0
    }

    /// Records the seconds of a step, which are the same on all ranks.
    pub(crate) fn took(&mut self, step_s: f64) {
        self.trials.took(step_s);
    }
}

/// A choice of one of several candidates, whose neighbours are tried now and then.
struct Trials {
    every: u64,
    n: usize,
    at: usize,
    /// Steps until the next trial.
    left: u64,
    /// During a trial: the candidates, the present one first, each with its times so far.
    tries: Vec<(usize, Vec<f64>)>,
}

impl Trials {
    fn new(every: u64, n: usize, at: usize) -> Trials {
        Trials { every, n, at, left: every, tries: Vec::new() }
    }

    /// Returns the candidate for the next step.
    fn next(&self) -> usize {
        let tried = self.tries.iter().find(|(_, times)| times.len() < TRIED);
        tried.map_or(self.at, |(tried, _)| *tried)
    }

    fn took(&mut self, step_s: f64) {
        match self.tries.iter_mut().find(|(_, times)| times.len() < TRIED) {
            Some((_, times)) => {
                times.push(step_s);
                if self.tries.iter().all(|(_, times)| times.len() == TRIED) {
                    self.decide();
                }
            }
            None if self.left > 1 => self.left -= 1,
            None => {
                let beside = self.at.saturating_sub(1)..(self.at + 2).min(self.n);
                let others = beside.filter(|other| *other != self.at);
                self.tries = [self.at].into_iter().chain(others).map(|t| (t, Vec::new())).collect();
            }
        }
    }

    fn decide(&mut self) {
        let median = |times: &[f64]| {
            let mut times = times[1..].to_vec();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let medians: Vec<_> = self.tries.drain(..).map(|(t, times)| (t, median(&times))).collect();
        let (_, present) = medians[0];
        let shortest = medians.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
        if let Some((other, _)) = shortest.filter(|(_, time)| *time < (1.0 - GAIN) * present) {
            self.at = other;
        }
        self.left = self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the choice after `n_steps` steps, if a step by each candidate takes the given time.
    fn chosen(trials: &mut Trials, n_steps: usize, takes: impl Fn(usize) -> f64) -> usize {
        for _ in 0..n_steps {
            trials.took(takes(trials.next()));
        }
        trials.at
    }

    #[test]
    fn the_shortest_is_found_and_kept() {
        let mut trials = Trials::new(5, 6, 0);
        let takes = |best: usize| move |of: usize| 1.0 + 0.1 * (of as f64 - best as f64).abs();
        assert_eq!(chosen(&mut trials, 5, takes(3)), 0);
        assert_eq!(chosen(&mut trials, 100, takes(3)), 3);
        // Links have become faster.
        assert_eq!(chosen(&mut trials, 100, takes(1)), 1);
        // A step that happens to be longer does not count.
        assert_eq!(chosen(&mut trials, 100, |of| if of == 1 { 1.0 } else { 0.99 }), 1);
    }

    #[test]
    fn one_alone_goes_on() {
        assert_eq!(chosen(&mut Trials::new(1, 1, 0), 20, |_| 1.0), 0);
    }
}

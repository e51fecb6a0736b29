//! Messages about a long step while it is running.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use crate::cli::parts::terminal::console::{duration, fixed};
use crate::cli::parts::terminal::progress::{Progress, TICK};
use crate::run::{Pace, WithinStep};

/// First steps of at least this many seconds are announced.
const ANNOUNCED: f64 = 10.0;
/// Seconds into a step after which a terminal shows its progress.
const SHOWN: f64 = 2.0;
/// Seconds into a step before the first line about its progress if there is no terminal, and the
/// shortest interval between lines.
const FIRST_LINE: f64 = 30.0;
/// Longest interval between lines in seconds: each is twice the one before.
const MOST_APART: f64 = 600.0;

/// Does `work`, and meanwhile shows the progress of its steps.
pub(crate) fn show<T>(pace: Option<&Pace>, progress: &Progress<'_>, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let watch = move || {
            let (first_step, has_bar) = (progress.first_step(), progress.has_bar());
            let mut lines = StepLines { first_step, has_bar, has_estimated: false, last: None };
            let began = Instant::now();
            while is_done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let Some(within) = pace.and_then(Pace::look) else { continue };
                if within.elapsed_s >= SHOWN {
                    progress.within(&done_of(&within));
                }
                if let Some(line) = lines.next(&within, began.elapsed().as_secs_f64()) {
                    progress.line(&line);
                }
            }
        };
        // Without a thread only the progress is missing.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let result = work();
        drop(done);
        result
    })
}

/// Decides when to print a line about the progress of a step.
struct StepLines {
    first_step: u64,
    has_bar: bool,
    has_estimated: bool,
    /// Time of the last line about a step's progress in seconds since the start, and its interval
    /// from the one before.
    last: Option<(f64, f64)>,
}

impl StepLines {
    /// Returns the line to print `now`, in seconds since the start, if there is one.
    fn next(&mut self, within: &WithinStep, now: f64) -> Option<String> {
        let is_unknown = within.step == self.first_step && !self.has_estimated;
        if let Some(whole) = within.whole_s.filter(|_| is_unknown) {
            self.has_estimated = true;
            return (whole >= ANNOUNCED).then(|| announcement(within, whole));
        }
        if self.has_bar || within.elapsed_s < FIRST_LINE {
            return None;
        }
        let apart = match self.last {
            Some((last, apart)) if now - last < apart => return None,
            Some((_, apart)) => (2.0 * apart).min(MOST_APART),
            None => FIRST_LINE,
        };
        self.last = Some((now, apart));
        let after = duration(within.elapsed_s);
        let left =
            within.left_s().map_or(String::new(), |s| format!(", about {} left", duration(s)));
        Some(format!("{} after {after}{left}", done_of(within)))
    }
}

fn announcement(within: &WithinStep, whole: f64) -> String {
    let (n_ops, seconds) = within.ops;
    let (whole, seconds) = (duration(whole), fixed(seconds, 1));
    format!("first step: about {whole} (its first {n_ops} ops took {seconds} s)")
}

fn done_of(within: &WithinStep) -> String {
    let WithinStep { n_done, n_micro_batches, .. } = within;
    format!("{}: {n_done} of {n_micro_batches} micro-batches", within.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of 200 s, 16 micro-batches and 40 ops.
    fn within(step: u64, elapsed_s: f64) -> WithinStep {
        let done = elapsed_s / 200.0;
        WithinStep {
            step,
            n_steps: 1,
            n_done: (16.0 * done) as u32,
            n_micro_batches: 16,
            ops: ((40.0 * done).ceil() as usize, elapsed_s),
            elapsed_s,
            whole_s: (40.0 * done > 2.0).then_some(200.0),
        }
    }

    fn lines(has_bar: bool, first_step: u64) -> StepLines {
        StepLines { first_step, has_bar, has_estimated: false, last: None }
    }

    #[test]
    fn a_long_first_step_is_announced_and_long_steps_say_how_far_they_are() {
        let mut lines = lines(false, 3);
        let mut said = Vec::new();
        for now in (0..400).map(f64::from) {
            let within = within(3 + now as u64 / 200, now % 200.0);
            said.extend(lines.next(&within, now).map(|line| (now as u32, line)));
        }
        let line = |at, line: &str| (at, line.to_string());
        assert_eq!(
            said,
            [
                line(11, "first step: about 3 min (its first 3 ops took 11.0 s)"),
                line(30, "step 3: 2 of 16 micro-batches after 30 s, about 3 min left"),
                line(60, "step 3: 4 of 16 micro-batches after 60 s, about 2 min left"),
                line(120, "step 3: 9 of 16 micro-batches after 2 min, about 80 s left"),
                line(240, "step 4: 3 of 16 micro-batches after 40 s, about 3 min left"),
            ]
        );
    }

    #[test]
    fn short_steps_and_bars_add_no_line() {
        let mut bar = lines(true, 0);
        assert!(bar.next(&within(0, 15.0), 15.0).is_some(), "the announcement");
        assert_eq!(bar.next(&within(0, 190.0), 190.0), None);
        let short = WithinStep { whole_s: Some(9.0), ..within(0, 5.0) };
        assert_eq!(lines(false, 0).next(&short, 5.0), None);
        assert_eq!(lines(false, 0).next(&within(1, 29.0), 29.0), None);
    }
}

//! What is said of a long step while it is under way.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use crate::cli::parts::console::{duration, fixed};
use crate::cli::parts::progress::{Progress, TICK};
use crate::run::{Pace, WithinStep};

/// Seconds of a first step that is announced.
const ANNOUNCED: f64 = 10.0;
/// Seconds into a step after which a terminal shows how far it is.
const SHOWN: f64 = 2.0;
/// Seconds into a step after which a line says so where there is no terminal, and at least from one line to the next.
const FIRST_LINE: f64 = 30.0;
/// Seconds from one line to the next at most: each is twice as far as the one before.
const MOST_APART: f64 = 600.0;

/// Does `work`, and shows meanwhile how far its steps are.
pub(crate) fn show<T>(pace: Option<&Pace>, progress: &Progress<'_>, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            let (began, mut lines) = (Instant::now(), Lines::default());
            while is_done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let Some(within) = pace.and_then(Pace::look) else { continue };
                if within.elapsed_s >= SHOWN {
                    progress.within(&done_of(&within));
                }
                let now = began.elapsed().as_secs_f64();
                if let Some(line) = lines.next(&within, now, progress) {
                    progress.line(&line);
                }
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// The lines that stay.
#[derive(Default)]
struct Lines {
    has_estimated: bool,
    /// When the last one about a step came, in seconds since the start, and how far from the one before.
    last: Option<(f64, f64)>,
}

impl Lines {
    /// What is to be said `now`, if anything.
    fn next(&mut self, within: &WithinStep, now: f64, progress: &Progress<'_>) -> Option<String> {
        let is_first = within.step == progress.first_step();
        if is_first
            && let Some(whole) = within.whole_s
            && !self.has_estimated
        {
            self.has_estimated = true;
            return (whole >= ANNOUNCED).then(|| announcement(within, whole));
        }
        if progress.is_on_terminal() || within.elapsed_s < FIRST_LINE {
            return None;
        }
        let apart = match self.last {
            Some((last, apart)) if now - last < apart => return None,
            Some((_, apart)) => (2.0 * apart).min(MOST_APART),
            None => FIRST_LINE,
        };
        self.last = Some((now, apart));
        let left =
            within.left_s().map_or(String::new(), |s| format!(", about {} left", duration(s)));
        Some(format!("{} after {}{left}", done_of(within), duration(within.elapsed_s)))
    }
}

fn announcement(within: &WithinStep, whole: f64) -> String {
    let (n_ops, seconds) = within.ops;
    let ops = if n_ops == 1 { "op".to_string() } else { format!("{n_ops} ops") };
    format!("first step: about {} (its first {ops} took {} s)", duration(whole), fixed(seconds, 1))
}

fn done_of(within: &WithinStep) -> String {
    let WithinStep { n_done, n_micro_batches, .. } = within;
    format!("{}: {n_done} of {n_micro_batches} micro-batches", within.name())
}

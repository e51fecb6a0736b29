//! The share of its cores that this process gets, according to the counters of Linux's scheduler.

use std::fs::{read_dir, read_to_string};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two reads of the counters.
const PAUSE: Duration = Duration::from_millis(250);
/// With fewer seconds in which threads could have run, a share means nothing.
const TOO_SHORT: f64 = 1.0;

/// Seconds that all threads of this process ran, and seconds that they waited for a core.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Counted {
    ran: f64,
    waited: f64,
}

/// Reads the counters from time to time, since those of a thread are lost when it ends.
pub struct CoreWatch {
    since: Instant,
    before: Option<Counted>,
    looked: Option<Instant>,
    share: Option<f64>,
}

impl CoreWatch {
    /// Starts counting.
    pub fn start() -> CoreWatch {
        let before = counted(Path::new("/proc/self/task"));
        CoreWatch { since: Instant::now(), before, looked: None, share: None }
    }

    /// Reads the counters, unless they were read a moment ago and this is not the last time.
    pub fn look(&mut self, n_cores: usize, is_last: bool) {
        let now = Instant::now();
        let is_soon = self.looked.is_some_and(|looked| now - looked < PAUSE);
        if is_soon && !is_last {
            return;
        }
        self.looked = Some(now);
        let (Some(before), Some(after)) = (self.before, counted(Path::new("/proc/self/task")))
        else {
            return;
        };
        let wall = (now - self.since).as_secs_f64();
        self.share = share(before, after, wall, n_cores).or(self.share);
    }

    /// Time in which the process's threads ran, as a fraction of the time in which they could have;
    /// `None` if the system does not count that, or the time was too short.
    pub fn share(&self) -> Option<f64> {
        self.share
    }
}

/// Computes the share of threads that could have run on `n_cores` for `wall` seconds.
fn share(before: Counted, after: Counted, wall: f64, n_cores: usize) -> Option<f64> {
    let ran = after.ran - before.ran;
    let waited = (after.waited - before.waited).max(0.0);
    // If there are more threads than cores, they wait for each other too.
    let could = (ran + waited).min(wall * n_cores as f64);
    (could >= TOO_SHORT).then(|| (ran / could).min(1.0))
}

/// Sums the counters of all threads in a folder such as `/proc/self/task`.
fn counted(tasks: &Path) -> Option<Counted> {
    let mut all = Counted { ran: 0.0, waited: 0.0 };
    for task in read_dir(tasks).ok()? {
        // A thread may have ended meanwhile.
        let Ok(text) = read_to_string(task.ok()?.path().join("schedstat")) else { continue };
        let mut nanoseconds = text.split_whitespace().map_while(|word| word.parse::<f64>().ok());
        all.ran += nanoseconds.next()? * 1e-9;
        all.waited += nanoseconds.next()? * 1e-9;
    }
    (all.ran > 0.0).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Counted = Counted { ran: 0.0, waited: 0.0 };

    #[test]
    fn the_share_is_what_ran_of_what_could_have_run() {
        let after = |ran, waited| Counted { ran, waited };
        for (after, wall, n_cores, expected, what) in [
            (after(20.0, 0.0), 10.0, 2, Some(1.0), "an idle machine"),
            (after(12.4, 7.6), 10.0, 2, Some(0.62), "others on the cores"),
            (after(5.0, 5.0), 10.0, 2, Some(0.5), "one thread beside another one on its core"),
            (after(20.0, 20.0), 10.0, 2, Some(1.0), "four threads on two cores, alone"),
            (after(10.0, 30.0), 10.0, 2, Some(0.5), "four threads on two cores, with others"),
            (after(0.9, 9.0), 10.0, 2, Some(0.9 / 9.9), "little that ran, of much that could"),
            (after(0.5, 0.4), 10.0, 2, None, "less than a second"),
        ] {
            assert_eq!(share(NOTHING, after, wall, n_cores), expected, "{what}");
        }
        let before = Counted { ran: 100.0, waited: 50.0 };
        let after = Counted { ran: 103.0, waited: 51.0 };
        assert_eq!(share(before, after, 10.0, 1), Some(0.75), "what was before does not count");
    }

    #[test]
    fn the_counters_of_all_threads_are_added() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(counted(folder.path()), None);
        for (task, text) in [("7", "3000000000 500000000 12\n"), ("8", "1000000000 0 3\n")] {
            std::fs::create_dir(folder.path().join(task)).expect("a folder");
            std::fs::write(folder.path().join(task).join("schedstat"), text).expect("written");
        }
        assert_eq!(counted(folder.path()), Some(Counted { ran: 4.0, waited: 0.5 }));
        std::fs::write(folder.path().join("7/schedstat"), "none\n").expect("written");
        assert_eq!(counted(folder.path()), None);
    }
}

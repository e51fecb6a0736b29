//! Times of a device that works on its own, as it tells them itself.

use std::collections::HashMap;
use std::fmt::Display;

use chimera_schedule::analyze::KernelRun;
use serde::Serialize;

use super::Result;

/// The clock of a device that works on its own.
pub trait Clock: Send {
    /// Marks this point of the work that was asked for so far. A device that fails to says so in
    /// [`ages`](Clock::ages).
    fn mark(&mut self);

    /// How many seconds ago the device came to each mark, in order. Waits for the last, and forgets them.
    fn ages(&mut self) -> Result<Vec<f64>>;

    /// Whether the device can tell how long each of its kernels takes.
    fn can_time_kernels(&self) -> bool {
        false
    }

    /// Begins to time every kernel that the device is asked for, which takes some time of its own, or ends that. What was
    /// timed before it begins is forgotten.
    fn time_kernels(&mut self, _is_on: bool) {}

    /// The kernels that were timed, in order, and forgets them. They start before the moment of the last
    /// [`ages`](Clock::ages), from which their starts are counted: these are negative.
    fn kernels(&mut self) -> Result<Vec<KernelRun>> {
        Ok(Vec::new())
    }

    /// Opens a named range around what is asked for from here on, in the one that is open in this thread, for a profiler
    /// that shows calls of the host.
    fn begin_range(&mut self, _name: &dyn Display) {}

    /// Closes the range that was opened last in this thread.
    fn end_range(&mut self) {}
}

/// What all runs of a kernel, or all products of one size, take together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelTime {
    /// The kernel's name, or `product m x k x n`.
    pub name: String,
    /// How many there were.
    pub n: u64,
    /// Seconds of all of them.
    pub seconds: f64,
    /// Floating-point operations of all of them, of products.
    pub flops: f64,
}

impl KernelTime {
    /// Sums up runs by name, the longest sum first.
    pub fn sums<'r>(runs: impl IntoIterator<Item = &'r KernelRun>) -> Vec<KernelTime> {
        let mut by_name: HashMap<&str, KernelTime> = HashMap::new();
        for KernelRun { name, seconds, flops, .. } in runs {
            let none = || KernelTime { name: name.clone(), n: 0, seconds: 0.0, flops: 0.0 };
            let sum = by_name.entry(name).or_insert_with(none);
            sum.n += 1;
            sum.seconds += seconds;
            sum.flops += flops;
        }
        let mut sums: Vec<_> = by_name.into_values().collect();
        sums.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_summed_by_name_and_the_longest_comes_first() {
        let run = |name: &str, seconds, flops| KernelRun {
            name: name.into(),
            start: 0.0,
            seconds,
            flops,
        };
        let runs =
            [run("gelu", 1.0, 0.0), run("product 2 x 2 x 2", 4.0, 16.0), run("gelu", 2.0, 0.0)];
        let sums = KernelTime::sums(&runs);
        let told: Vec<_> = sums.iter().map(|s| (&*s.name, s.n, s.seconds, s.flops)).collect();
        assert_eq!(told, [("product 2 x 2 x 2", 1, 4.0, 16.0), ("gelu", 2, 3.0, 0.0)]);
    }
}

//! Timing of asynchronous devices, by their own clocks.

use std::collections::HashMap;
use std::fmt::Display;

use chimera_schedule::analyze::KernelRun;
use serde::Serialize;

use super::Result;

/// The clock of an asynchronous device.
pub trait Clock: Send {
    /// Marks this point in the requested work. [`ages`](Clock::ages) reports failures.
    fn mark(&mut self);

    /// Returns how many seconds ago the device reached each mark, in order. Waits for the last
    /// mark, then forgets all of them.
    fn ages(&mut self) -> Result<Vec<f64>>;

    /// Returns true if the device can time its kernels.
    fn can_time_kernels(&self) -> bool {
        false
    }

    /// Turns timing of kernels on, discarding older runs, or off. Timing has some overhead.
    fn time_kernels(&mut self, _is_on: bool) {}

    /// Returns the timed kernels, in order, and forgets them. Their start times are relative to the
    /// last call of [`ages`](Clock::ages), so they are negative.
    fn kernels(&mut self) -> Result<Vec<KernelRun>> {
        Ok(Vec::new())
    }

    /// Opens a named range around the work requested from here on, nested in this thread's open
    /// range. Profilers that show host calls display the range.
    fn begin_range(&mut self, _name: &dyn Display) {}

    /// Closes the range that this thread opened last.
    fn end_range(&mut self) {}
}

/// Total time of all runs of a kernel, or of all products of one size.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelTime {
    /// The kernel's name, or `product m x k x n`.
    pub name: String,
    /// Number of runs.
    pub n: u64,
    /// Total seconds.
    pub seconds: f64,
    /// Total floating-point operations; counted for products only.
    pub flops: f64,
}

impl KernelTime {
    /// Adds up the runs by name, longest total first.
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

//! The number of cores that the workers of a run have, in one process or in several.
//!
//! A launcher may bind each process to cores of its own, or let every process use all cores of a
//! host. The cores of one process do not show which, so the cores of the launcher itself count too.

use chimera_device::n_cores;

use super::launch::Launch;
use crate::run::{DirectTransport, Here, Run, Transformer};

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Returns the cores that all workers have together, on all hosts.
    pub fn cores(&self) -> usize {
        let Here { part, own } = self.subject.here;
        if own.is_none() {
            return n_cores();
        }
        let n_ranks = (self.config().schedule.width * self.config().schedule.depth) as f64;
        (cores_of((part * n_ranks).round() as usize) as f64 / part).round() as usize
    }
}

/// Returns the cores that the `n_local` processes of a job on this host have together. This process is one of them.
pub(crate) fn cores_of(n_local: usize) -> usize {
    let own = n_cores();
    let launch = Launch::found();
    let of_host = launch.and_then(|launch| of_launcher(launch.variable)).or_else(online);
    together(own, affinity(None).unwrap_or(own), of_host.unwrap_or(own), n_local)
}

/// Returns the cores that `n_local` processes have together. Each may use `own` at a time and is
/// `bound` to a number of processors; the launcher has `of_host`.
fn together(own: usize, bound: usize, of_host: usize, n_local: usize) -> usize {
    if own < bound {
        own
    } else {
        // a container's quota is that of all its processes
        own.saturating_mul(n_local).min(of_host).max(own)
    }
}

/// Returns the number of processors that the launcher may use. The launcher is the nearest ancestor
/// without the variable that it sets for ranks: scripts between the two are bound as ranks are.
#[cfg(target_os = "linux")]
fn of_launcher(variable: &str) -> Option<usize> {
    let given = format!("{variable}=");
    let is_given = |pid: &str| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|one| one.starts_with(given.as_bytes()))
    };
    let mut ancestors = std::iter::successors(parent("self"), |pid| parent(pid));
    let launcher = ancestors.find(|pid| !is_given(pid))?;
    affinity(Some(rustix::process::Pid::from_raw(launcher.parse().ok()?)?))
}

#[cfg(target_os = "linux")]
fn parent(pid: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.map(|pid| pid.trim().to_string())
}

/// Returns the number of processors that a process may run on, by default this one.
#[cfg(target_os = "linux")]
fn affinity(pid: Option<rustix::process::Pid>) -> Option<usize> {
    Some(rustix::thread::sched_getaffinity(pid).ok()?.count() as usize)
}

#[cfg(not(target_os = "linux"))]
fn of_launcher(_variable: &str) -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
fn affinity(_pid: Option<u32>) -> Option<usize> {
    None
}

/// Returns the number of processors of this host, if the system reports it.
fn online() -> Option<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    online.trim().split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_cores_that_they_are_bound_to_or_share() {
        for (own, bound, of_host, n_local, expected, what) in [
            (8, 8, 8, 1, 8, "threads of one process"),
            (1, 1, 8, 1, 1, "threads of one process that is bound"),
            (1, 1, 8, 8, 8, "ranks bound to a core each"),
            (4, 4, 16, 3, 12, "ranks bound to four cores each"),
            (2, 2, 8, 8, 8, "ranks bound to cores of two threads, two to each"),
            (8, 8, 8, 4, 8, "ranks that are not bound"),
            (4, 4, 4, 8, 4, "ranks that are not bound, in a container with some cores"),
            (2, 8, 8, 4, 2, "ranks that are not bound, in a container with a quota"),
            (2, 2, 1, 4, 2, "a launcher that bound itself"),
        ] {
            assert_eq!(together(own, bound, of_host, n_local), expected, "{what}");
        }
    }

    /// The parent of the test process acts as the launcher.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_launcher_is_who_was_not_given_the_variable() {
        let of_parent = of_launcher("CHIMERA_GIVEN_TO_NOBODY").expect("a parent");
        assert!((1..=online().expect("processors")).contains(&of_parent));
    }
}

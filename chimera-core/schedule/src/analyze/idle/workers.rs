//! Analyses of each worker by itself, on all cores.

use std::panic::resume_unwind;
use std::thread;

/// Fewer events than this are analysed sooner than threads start.
const LEAST_EVENTS: usize = 1 << 16;

/// Calls `of` for each of `n` workers, on all cores if there are many events. A browser has no
/// threads, and reports one core.
pub(super) fn each_worker<T: Send>(
    n: usize,
    n_events: usize,
    of: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let n_threads = if n_events < LEAST_EVENTS { 1 } else { cores().min(n) };
    if n_threads <= 1 {
        return (0..n).map(of).collect();
    }
    // Thread t takes workers t, t + n_threads and so on.
    let part = |t: usize| (t..n).step_by(n_threads).map(&of).collect::<Vec<T>>();
    let part = &part;
    let mut parts: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|t| scope.spawn(move || part(t))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|part| part.unwrap_or_else(|panic| resume_unwind(panic)).into_iter()).collect()
    });
    (0..n).filter_map(|worker| parts[worker % n_threads].next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_stand_in_order_on_any_number_of_cores() {
        for n in [0, 1, 2, 7, 64] {
            for n_events in [0, LEAST_EVENTS] {
                let squares = each_worker(n, n_events, |worker| worker * worker);
                assert_eq!(squares, (0..n).map(|worker| worker * worker).collect::<Vec<_>>());
            }
        }
    }
}

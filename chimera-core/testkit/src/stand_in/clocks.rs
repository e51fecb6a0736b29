//! A common moment on the clocks of several processes.

use std::time::{Duration, Instant};

use chimera_engine::comm::{CommError, Endpoint};
use chimera_schedule::ids::Rank;

/// Number of times that each rank is asked; the quickest answer counts.
const N_QUESTIONS: usize = 16;

/// Finds a moment common to all ranks, each by its own clock: rank 0 asks every other rank for its
/// time, as in Cristian's algorithm (Distributed Computing 3, 1989).
///
/// # Errors
/// If an answer does not come by `deadline`.
pub(super) fn common_epoch(
    comm: &mut (impl Endpoint + ?Sized),
    deadline: Instant,
) -> Result<Instant, CommError> {
    let epoch = Instant::now();
    let lead = Rank(0);
    if comm.rank() != lead {
        for _ in 0..N_QUESTIONS {
            comm.recv_bytes(lead, deadline)?;
            comm.send_bytes(lead, number(epoch.elapsed().as_secs_f64()))?;
        }
        let ahead = seconds(lead, &comm.recv_bytes(lead, deadline)?)?;
        let ahead_by = Duration::from_secs_f64(ahead.abs());
        let moved =
            if ahead > 0.0 { epoch.checked_add(ahead_by) } else { epoch.checked_sub(ahead_by) };
        return Ok(moved.unwrap_or(epoch));
    }
    for rank in (1..comm.n_ranks()).map(Rank) {
        let (mut quickest, mut ahead) = (f64::INFINITY, 0.0);
        for _ in 0..N_QUESTIONS {
            let asked = epoch.elapsed().as_secs_f64();
            comm.send_bytes(rank, Vec::new())?;
            let theirs = seconds(rank, &comm.recv_bytes(rank, deadline)?)?;
            let answered = epoch.elapsed().as_secs_f64();
            if answered - asked < quickest {
                (quickest, ahead) = (answered - asked, theirs - (asked + answered) / 2.0);
            }
        }
        comm.send_bytes(rank, number(ahead))?;
    }
    Ok(epoch)
}

fn number(seconds: f64) -> Vec<u8> {
    seconds.to_le_bytes().to_vec()
}

fn seconds(from: Rank, bytes: &[u8]) -> Result<f64, CommError> {
    let read = bytes.try_into().ok().map(f64::from_le_bytes).filter(|s| s.abs() < 1e9);
    let reason = || "no time of a clock".to_string();
    read.ok_or_else(|| CommError::Unreadable { from, reason: reason() })
}

#[cfg(test)]
mod tests {
    use chimera_engine::comm::threads;

    use super::*;

    /// Threads share a clock, so all must find the same moment.
    #[test]
    fn all_ranks_find_one_moment() {
        let deadline = Instant::now() + Duration::from_secs(60);
        let epochs: Vec<Instant> = std::thread::scope(|scope| {
            let find = |mut comm| common_epoch(&mut comm, deadline).expect("a moment");
            let ranks = threads::<()>(4).into_iter();
            let ranks: Vec<_> = ranks.map(|comm| scope.spawn(move || find(comm))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        for epoch in &epochs {
            let (early, late) = (epochs[0].min(*epoch), epochs[0].max(*epoch));
            assert!(late - early < Duration::from_millis(50), "{:?}", late - early);
        }
    }
}

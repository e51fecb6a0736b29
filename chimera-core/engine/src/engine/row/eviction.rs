//! Eviction of stalled ranks, so that the others can continue without them.
//!
//! A wait that times out cannot tell a stalled rank from a slow one. The rank named by a diagnosis
//! is therefore observed for as long again as it was waited for. If its answer changes at any look,
//! it is making progress and stays.

use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;

use crate::comm::{CommError, Liveness, Position};

/// Time that other ranks have to report their positions.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Evicts `stalled`, with the position in `known`, if it makes no progress for as long as it was
/// `waited` for. Evicts all silent ranks with it, since the others could not meet while one of them
/// is there. Returns true if all of them were evicted.
///
/// # Errors
/// If a rank has died meanwhile, or has reported why the run is over.
pub(crate) fn evict_stalled(
    comm: &mut impl Liveness,
    stalled: Rank,
    known: &[Option<Position>],
    waited: Duration,
) -> Result<bool, CommError> {
    let mut silent: Vec<Rank> =
        (0..).map(Rank).zip(known).filter(|(_, at)| at.is_none()).map(|(rank, _)| rank).collect();
    let mut left = waited; // not by the clock: a rank that was itself stopped has not looked
    loop {
        comm.pause(LOOK.min(left));
        let asked = Instant::now();
        let positions = comm.query_progress(asked + ANSWER)?;
        let at = |rank: Rank| positions.get(rank.index()).copied().flatten();
        if known.get(stalled.index()).copied().flatten() != at(stalled) {
            return Ok(false);
        }
        silent.retain(|rank| at(*rank).is_none());
        left = left.saturating_sub(LOOK + asked.elapsed().min(ANSWER));
        if left.is_zero() {
            break;
        }
    }
    silent.retain(|rank| *rank != stalled);
    silent.push(stalled);
    Ok(silent.iter().all(|rank| comm.evictor(*rank).is_some_and(|comm| comm.evict(*rank))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Evict;

    /// Ranks with scripted positions at each look; the last look repeats.
    struct Looks {
        all: Vec<Vec<Option<Position>>>,
        evicted: Vec<Rank>,
    }

    impl Liveness for Looks {
        fn query_progress(&mut self, _: Instant) -> Result<Vec<Option<Position>>, CommError> {
            let is_last = self.all.len() == 1;
            Ok(if is_last { self.all[0].clone() } else { self.all.remove(0) })
        }

        fn evictor(&mut self, _: Rank) -> Option<&mut dyn Evict> {
            Some(self)
        }

        fn pause(&mut self, _: Duration) {}
    }

    impl Evict for Looks {
        fn evict(&mut self, rank: Rank) -> bool {
            self.evicted.push(rank);
            true
        }
    }

    /// Returns the ranks evicted for these positions at each look, waiting for rank 1.
    fn evicted(all: Vec<Vec<Option<Position>>>) -> Vec<Rank> {
        let (known, mut looks) = (all[0].clone(), Looks { all, evicted: Vec::new() });
        let waited = Duration::from_secs(10);
        let is_done = evict_stalled(&mut looks, Rank(1), &known, waited).expect("nobody died");
        assert_eq!(is_done, !looks.evicted.is_empty());
        looks.evicted
    }

    fn at(instr: u32) -> Option<Position> {
        Some(Position::At { step: 3, instr })
    }

    #[test]
    fn who_stands_still_or_is_silent_is_evicted() {
        assert_eq!(evicted(vec![vec![at(4), at(2)]]), [Rank(1)]);
        assert_eq!(evicted(vec![vec![at(4), None]]), [Rank(1)]);
        // The others could not meet while another rank is silent.
        assert_eq!(evicted(vec![vec![None, at(2), None]]), [Rank(0), Rank(2), Rank(1)]);
    }

    #[test]
    fn who_is_slow_stays() {
        let stood = || vec![at(4), at(2)];
        assert_eq!(evicted(vec![stood(), stood(), stood(), vec![at(4), at(3)]]), []);
        // The rank may have answered late.
        let silent = || vec![at(4), None];
        assert_eq!(evicted(vec![silent(), silent(), stood()]), []);
        // Only one of two silent ranks answers later.
        let both = vec![None, None];
        assert_eq!(evicted(vec![both.clone(), both, silent()]), [Rank(1)]);
    }
}

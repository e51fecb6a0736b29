//! Ranks that are stalled, whom the others go on without.
//!
//! A wait that is too long does not tell a stalled rank from a slow one. So the rank that a diagnosis names is looked at for as
//! long again as was waited for it: one that answers otherwise than before at any look goes on, and stays.

use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;

use crate::comm::{CommError, Liveness, Position};

/// How long other ranks may take to say where they are.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Evicts `stalled`, which was where `known` says, if it makes no progress for as long as was `waited` for it, and with it all
/// ranks that do not answer either: the others could not meet while one of these is there. Returns whether that is done.
///
/// # Errors
/// If a rank has died meanwhile, or has said why the run is over.
pub(crate) fn evict_stalled(
    comm: &mut impl Liveness,
    stalled: Rank,
    known: &[Option<Position>],
    waited: Duration,
) -> Result<bool, CommError> {
    let mut silent: Vec<Rank> =
        (0..).map(Rank).zip(known).filter(|(_, at)| at.is_none()).map(|(rank, _)| rank).collect();
    let mut left = waited; // not by the clock: who was itself stopped has not looked
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

    /// Ranks that are where they are at each look, the last look for good.
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

    /// Who is evicted of ranks that were where the first look says, where rank 1 is waited for.
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
        // The others could not meet while another one is silent.
        assert_eq!(evicted(vec![vec![None, at(2), None]]), [Rank(0), Rank(2), Rank(1)]);
    }

    #[test]
    fn who_is_slow_stays() {
        let stood = || vec![at(4), at(2)];
        assert_eq!(evicted(vec![stood(), stood(), stood(), vec![at(4), at(3)]]), []);
        // It may have answered late.
        let silent = || vec![at(4), None];
        assert_eq!(evicted(vec![silent(), silent(), stood()]), []);
        // Of two that were silent one goes on.
        let both = vec![None, None];
        assert_eq!(evicted(vec![both.clone(), both, silent()]), [Rank(1)]);
    }
}

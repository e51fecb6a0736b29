//! Ranks that are stalled, whom the others go on without.
//!
//! A wait that is too long does not tell a stalled rank from a slow one. So the rank that a verdict names is looked at for as
//! long again as was waited for it: one that answers otherwise than before at any look goes on, and stays.

use std::time::{Duration, Instant};

use super::faults::ANSWER;
use crate::comm::{CommError, Liveness, Position};
use crate::ids::Rank;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Evicts `stalled`, which was where `known` says, if it makes no progress for as long as was `waited` for it, and with it all
/// ranks that do not answer either: the others could not meet while one of these is there. Returns whether that is done.
///
/// # Errors
/// If a rank has died meanwhile, or has said why the run is over.
pub(super) fn evict_stalled(
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
    Ok(silent.iter().all(|rank| comm.can_evict(*rank) && comm.evict(*rank)))
}

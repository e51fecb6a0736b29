//! The exchange between ranks before they train together.

use std::time::Instant;

use chimera_schedule::ids::Rank;

use crate::comm::{CommError, Endpoint, all_gather};
use crate::engine::fields::{Fields, differences};
use crate::engine::row::eviction::{ANSWER, evict_stalled};
use crate::engine::row::faults::evicted;
use crate::fault::{Class, Fault};

/// Exchanges the fields of all ranks; waits until `deadline` for the last.
///
/// # Errors
/// [`Class::Mismatch`] names every field that differs between ranks, with the ranks of each value.
pub fn handshake(
    comm: &mut impl Endpoint,
    fields: &Fields,
    deadline: Instant,
) -> Result<(), Fault> {
    let rank = comm.rank();
    let bytes = serde_json::to_vec(fields);
    let bytes = bytes.map_err(|e| Fault::new(Class::Internal, rank, e.to_string()))?;
    let records = all_gather(comm, &bytes, deadline);
    let records = records.map_err(|e| ungathered(comm, e))?;
    let mut all: Vec<Fields> = Vec::with_capacity(records.len());
    for (from, record) in (0..).map(Rank).zip(&records) {
        all.push(serde_json::from_slice(record).map_err(|_| {
            let message =
                format!("{from} greets in another way: start the same version on all ranks");
            Fault { peer: Some(from), ..Fault::new(Class::Mismatch, rank, message) }
        })?);
    }
    let Some(other) = all.iter().position(|theirs| theirs != fields) else { return Ok(()) };
    let message = format!("the ranks are not of one run:\n  {}", differences(&all).join("\n  "));
    let fault = Fault::new(Class::Mismatch, rank, message);
    Err(Fault { peer: Some(Rank(other as u32)), ..fault })
}

/// Returns the fault of an all-gather that failed outside of training, when all wait for all. A
/// rank that does not answer is evicted, if the transport can.
pub fn ungathered(comm: &mut impl Endpoint, error: CommError) -> Fault {
    let waited = match &error {
        CommError::Timeout { waited, .. } => Some(*waited),
        _ => None,
    };
    let fault = error.into_fault(comm.rank());
    let Some(waited) = waited else { return fault };
    let positions = match comm.query_progress(Instant::now() + ANSWER) {
        Ok(positions) => positions,
        Err(cause) => return cause.into_fault(comm.rank()),
    };
    let silent = positions.iter().position(Option::is_none).map(|rank| Rank(rank as u32));
    let Some(silent) = silent else { return fault };
    let mut is_evicted = false;
    if comm.evictor(silent).is_some() {
        match evict_stalled(comm, silent, &positions, waited) {
            Ok(is_done) => is_evicted = is_done,
            Err(cause) => return cause.into_fault(comm.rank()),
        }
    }
    let why = format!("{silent} does not answer: it is stopped, or unreachable");
    let message = format!("{}; {why}", fault.message);
    evicted(Fault { peer: Some(silent), message, ..fault }, is_evicted, waited)
}

//! All-gathers between ranks that are processes, besides those of the training itself.

use std::ops::Range;
use std::time::{Duration, Instant};

use chimera_core::analyze::{Event, Wait};
use chimera_core::comm::{Comm, CommError, Endpoint, all_gather_json};
use chimera_core::device::{Device, KernelRun};
use chimera_core::engine::{Worker, ungathered};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::program::Program;
use chimera_core::stage::Stage;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::observe::{Did, Recorder};

/// Returns the value of every rank, by rank. Used before and after the training.
///
/// # Errors
/// When `patience` ends, the fault names the rank that does not answer, or else the one that was waited for.
pub fn share<T: Serialize + DeserializeOwned>(
    comm: &mut impl Endpoint,
    own: &T,
    patience: Duration,
) -> Result<Vec<T>, Fault> {
    let all = all_gather_json(comm, own, Instant::now() + patience);
    all.map_err(|error| ungathered(comm, error))
}

/// Returns the all-gather that checkpoints use.
pub(crate) fn all_gather<'w, S, K, C>(
    worker: &'w mut Worker<'_, S, K, C>,
) -> impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Fault> + 'w
where
    S: Stage<Tensor = K::Tensor>,
    K: Device,
    C: Comm<K::Tensor>,
{
    |bytes| worker.all_gather("checkpoint", bytes)
}

/// Serializes the ops of a rank in some steps, for [`record`].
pub(crate) fn written(did: &Did<'_, '_>) -> Result<Vec<u8>, Fault> {
    let own = serde_json::to_vec(&(did.events, did.waits, did.kernels));
    own.map_err(|e| unwritable(did.rank, &e))
}

/// Passes the ops of every rank in some steps to rank 0's recorder; this rank's are
/// [`own`](written). All ranks call it.
pub(crate) fn record<'p, S, K, C>(
    worker: &mut Worker<'_, S, K, C>,
    me: Rank,
    recorder: &Recorder<'p>,
    (program, steps): (&'p Program, Range<u64>),
    own: &[u8],
) -> Result<(), Fault>
where
    S: Stage<Tensor = K::Tensor>,
    K: Device,
    C: Comm<K::Tensor>,
{
    let all = worker.all_gather("trace", own)?;
    for (rank, bytes) in (0..).map(Rank).zip(all).filter(|_| me == Rank(0)) {
        let (events, waits, kernels): (Vec<Event>, Vec<Wait>, Vec<KernelRun>) =
            read_from(rank, &bytes, me)?;
        let (steps, events, waits, kernels) = (steps.clone(), &*events, &*waits, &*kernels);
        recorder.add(&Did { rank, program, steps, events, waits, kernels })?;
    }
    Ok(())
}

/// Parses on rank `me` the bytes that `from` has sent.
fn read_from<T: DeserializeOwned>(from: Rank, bytes: &[u8], me: Rank) -> Result<T, Fault> {
    serde_json::from_slice(bytes)
        .map_err(|error| CommError::Unreadable { from, reason: error.to_string() }.into_fault(me))
}

fn unwritable(rank: Rank, error: &serde_json::Error) -> Fault {
    Fault::new(Class::Internal, rank, format!("its message cannot be written: {error}"))
}

//! One process's share of the saving: it writes the parts of its ranks while they train, and rank 0
//! publishes the checkpoint when the parts of all processes are written.

use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use chimera_core::comm::CommError;
use chimera_core::engine::Snapshot;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::saver::Warn;
use super::store::writer_died;
use super::writer::{WriterThread, begin_writer};
use super::{Manifest, Shard, State, Store};

/// Interval at which ranks that wait for a save exchange signs of life.
const TELL: Duration = Duration::from_secs(1);

/// Gives bytes to every process and returns those of all, by rank; `None` if there is only one.
pub type AllGather<'g, 'x> = Option<&'g mut (dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Fault> + 'x)>;

/// One process's share of the saving. All processes make the same calls in the same order.
pub struct Share {
    store: Store,
    warn: Warn,
    rank: Rank,
    under_way: Option<UnderWay>,
    /// The result of the last save.
    last: Option<Result<PathBuf, Fault>>,
    /// The copies that have been written. The next copies reuse their memory.
    spent: Parts,
}

/// The copies of one rank, or of all.
type Parts = Vec<Vec<Snapshot>>;

struct UnderWay {
    state: State,
    /// The manifest, until rank 0 publishes it.
    manifest: Option<Manifest>,
    /// The thread that writes or publishes.
    thread: Option<WriterThread<(Status, Parts)>>,
    status: Status,
}

/// The progress of one process.
#[derive(Serialize, Deserialize, Clone)]
enum Status {
    Writing,
    Written(Option<Shard>),
    Failed(Fault),
    /// Rank 0 has published all, or removed it.
    Over(Result<PathBuf, Fault>),
}

impl Share {
    /// Returns the share of a process whose first rank is `rank`.
    pub(super) fn of(rank: Rank, store: Store, warn: Warn) -> Share {
        Share { store, warn, rank, under_way: None, last: None, spent: Vec::new() }
    }

    /// Returns the `nth` part of this process in the previous save, once that is done.
    pub fn spent(
        &mut self,
        nth: usize,
        all_gather: AllGather<'_, '_>,
    ) -> Result<Vec<Snapshot>, Fault> {
        self.settle(all_gather)?; // one copy at a time
        Ok(self.spent.get_mut(nth).map(take).unwrap_or_default())
    }

    /// Begins a save of the `parts` of this process, once the previous save is done.
    pub fn begin(
        &mut self,
        mut all_gather: AllGather<'_, '_>,
        state: &State,
        manifest: Manifest,
        parts: Vec<Vec<Snapshot>>,
    ) -> Result<(), Fault> {
        self.settle(all_gather.as_deref_mut())?;
        let (store, warns) = (self.store.clone(), self.warns(state));
        let (step, nth) = (state.step, self.rank.index());
        let (manifest, thread) = if all_gather.is_none() {
            let save = move || {
                let saved = store.save(manifest, &parts);
                (Status::Over(saved.inspect_err(warns)), parts)
            };
            (None, begin_writer(save))
        } else {
            let begun = match (self.rank, store.whole(step)) {
                (Rank(0), Some(whole)) => Err(Ok(whole)), // published before a death
                (Rank(0), None) => store.begin(step).map_err(Err),
                _ => Ok(()),
            };
            let begun: Vec<Result<(), Result<PathBuf, Fault>>> = self.share(all_gather, &begun)?;
            if let Some(ended) = begun.into_iter().find_map(Result::err) {
                self.last = Some(ended.inspect_err(warns));
                return Ok(());
            }
            let write = move || {
                let part = parts.first().map_or(&[][..], Vec::as_slice);
                let written = store.write(step, nth, part);
                (written.map_or_else(Status::Failed, Status::Written), parts)
            };
            (Some(manifest), begin_writer(write))
        };
        let (state, thread, status) = (*state, Some(thread), Status::Writing);
        self.under_way = Some(UnderWay { state, manifest, thread, status });
        Ok(())
    }

    /// Begins to publish the current save if all have written their parts; this too happens during training.
    pub fn poll(&mut self, all_gather: AllGather<'_, '_>) -> Result<(), Fault> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(()) };
        if let Some(thread) = under_way.thread.take_if(|thread| thread.is_finished()) {
            let (status, parts) = thread.join().unwrap_or_else(|| (under_way.died(), Vec::new()));
            under_way.status = status;
            if !parts.is_empty() {
                self.spent = parts;
            }
        }
        let all = match self.share(all_gather, &under_way.status) {
            Ok(all) => all,
            Err(fault) => {
                self.under_way = Some(under_way); // its thread may still write
                return Err(fault);
            }
        };
        let is_written = !all.iter().any(|status| matches!(status, Status::Writing));
        let over = all.iter().find_map(|status| match status {
            Status::Over(ended) => Some(ended.clone()),
            _ => None,
        });
        if over.is_some() {
            self.last = over;
            return Ok(());
        }
        if self.rank == Rank(0)
            && is_written
            && let Some(manifest) = under_way.manifest.take()
        {
            let (store, warns) = (self.store.clone(), self.warns(&under_way.state));
            under_way.thread = Some(begin_writer(move || {
                let saved = match shards(all) {
                    Ok(shards) => store.publish(Manifest { shards, ..manifest }),
                    Err(fault) => {
                        store.discard(manifest.step);
                        Err(fault)
                    }
                };
                (Status::Over(saved.inspect_err(warns)), Vec::new())
            }));
        }
        self.under_way = Some(under_way);
        Ok(())
    }

    /// Waits for the last save, if there was one, and returns its path or its error.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn finish(
        &mut self,
        mut all_gather: AllGather<'_, '_>,
    ) -> Result<Option<Result<PathBuf, Fault>>, Fault> {
        self.settle(all_gather.as_deref_mut())?;
        let last = self.share(all_gather, &self.last)?;
        self.last = None;
        Ok(last.into_iter().next().flatten())
    }

    /// Returns true if a save is in progress, or has ended and [`finish`](Share::finish) has not
    /// returned its result. After a death the save must begin again, even if only one rank has not
    /// finished it.
    pub fn is_unfinished(&self) -> bool {
        self.under_way.is_some() || self.last.is_some()
    }

    /// Waits for the current save. Processes exchange signs of life now and then, so that none takes a
    /// slow disk for a lost peer.
    pub fn settle(&mut self, mut all_gather: AllGather<'_, '_>) -> Result<(), Fault> {
        while let Some(under_way) = &self.under_way {
            let told = Instant::now();
            let is_at_work = || under_way.thread.as_ref().is_some_and(|of| !of.is_finished());
            while is_at_work() && told.elapsed() < TELL {
                thread::sleep(Duration::from_millis(2));
            }
            self.poll(all_gather.as_deref_mut())?;
        }
        Ok(())
    }

    /// Returns what rank 0 does about an error of a save after which the training goes on: it warns.
    fn warns(&self, state: &State) -> impl FnOnce(&Fault) + Send + use<> {
        let warn = (self.rank == Rank(0) && !state.is_last).then(|| Arc::clone(&self.warn));
        move |fault| {
            if let Some(warn) = warn {
                warn(&format!("{}; training goes on", fault.message));
            }
        }
    }

    /// Returns the value of every process.
    fn share<T: Serialize + DeserializeOwned + Clone>(
        &self,
        all_gather: AllGather<'_, '_>,
        own: &T,
    ) -> Result<Vec<T>, Fault> {
        let Some(all_gather) = all_gather else { return Ok(vec![own.clone()]) };
        let fault = |class, message: String| Fault::new(class, self.rank, message);
        let own = serde_json::to_vec(own).map_err(|e| fault(Class::Internal, e.to_string()))?;
        let all = all_gather(&own)?;
        let read = |(from, bytes): (u32, &Vec<u8>)| {
            serde_json::from_slice(bytes).map_err(|error| {
                let unreadable =
                    CommError::Unreadable { from: Rank(from), reason: error.to_string() };
                unreadable.into_fault(self.rank)
            })
        };
        (0..).zip(&all).map(read).collect()
    }
}

/// Joins the thread of a save that is given up after a rank's death: the same save may be begun again.
impl Drop for Share {
    fn drop(&mut self) {
        let under_way = self.under_way.take();
        let _ = under_way.and_then(|under_way| under_way.thread).map(WriterThread::join);
    }
}

impl UnderWay {
    /// Returns the status after its thread has panicked.
    fn died(&self) -> Status {
        match self.manifest {
            Some(_) => Status::Failed(writer_died()),
            None => Status::Over(Err(writer_died())),
        }
    }
}

/// Returns the files that all have written, or the error of one that could not.
fn shards(all: Vec<Status>) -> Result<Vec<Shard>, Fault> {
    let written = all.into_iter().filter_map(|status| match status {
        Status::Failed(fault) => Some(Err(fault)),
        Status::Written(shard) => shard.map(Ok),
        Status::Writing | Status::Over(_) => None,
    });
    written.collect()
}

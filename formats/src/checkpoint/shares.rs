//! Saving by ranks that are processes: each writes its own part during training, and rank 0
//! publishes the checkpoint when all are written.

use std::mem::take;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use chimera_core::comm::CommError;
use chimera_core::engine::Snapshot;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::store::writer_died;
use super::writer::{WriterThread, begin_writer};
use super::{Manifest, Saver, Shard, State};

/// Interval at which ranks that wait for a save exchange signs of life.
const TELL: Duration = Duration::from_secs(1);

/// Gives bytes to every rank and returns those of all, by rank.
pub type AllGather<'x> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Fault> + 'x;

/// One rank's share of the saving. All ranks make the same calls in the same order.
pub struct Shares<'s> {
    saver: &'s Saver,
    rank: Rank,
    under_way: Option<ShareUnderWay>,
    /// The result of the last save, as rank 0 knows it.
    last: Option<Result<PathBuf, Fault>>,
    /// The copy that has been written. The next copy reuses its memory.
    spent: Vec<Snapshot>,
}

struct ShareUnderWay {
    state: State,
    /// The manifest on rank 0, which publishes it when all have written.
    manifest: Option<Manifest>,
    writer: Option<WriterThread<(Status, Vec<Snapshot>)>>,
    publisher: Option<WriterThread<Result<PathBuf, Fault>>>,
    status: Status,
}

/// The progress of one rank.
#[derive(Serialize, Deserialize, Clone)]
enum Status {
    Writing,
    Written(Option<Shard>),
    Failed(Fault),
    /// Rank 0 has published all, or removed it.
    Over,
}

impl<'s> Shares<'s> {
    /// Returns the share of `rank`.
    pub fn of(saver: &'s Saver, rank: Rank) -> Shares<'s> {
        Shares { saver, rank, under_way: None, last: None, spent: Vec::new() }
    }

    /// Returns the part of this rank in the previous save, once that is done.
    pub fn spent(&mut self, all_gather: &mut AllGather<'_>) -> Result<Vec<Snapshot>, Fault> {
        self.settle(all_gather)?; // one copy at a time
        Ok(take(&mut self.spent))
    }

    /// Begins a save, once the previous one is done.
    pub fn begin(
        &mut self,
        all_gather: &mut AllGather<'_>,
        state: &State,
        manifest: Manifest,
        part: Vec<Snapshot>,
    ) -> Result<(), Fault> {
        self.settle(all_gather)?;
        let (store, step, nth) = (self.saver.store().clone(), state.step, self.rank.index());
        // It may have been published before a death.
        let published = || store.whole(step).map(|whole| Err(Ok(whole)));
        let begun = match self.rank {
            Rank(0) => published().unwrap_or_else(|| store.begin(step).map_err(Err)),
            _ => Ok(()),
        };
        let begun: Vec<Result<(), Result<PathBuf, Fault>>> = self.share(all_gather, &begun)?;
        if let Some(ended) = begun.into_iter().find_map(Result::err) {
            self.end(state, ended);
            return Ok(());
        }
        let writer = begin_writer(move || {
            let written = store.write(step, nth, &part);
            (written.map_or_else(Status::Failed, Status::Written), part)
        });
        let (writer, status) = (Some(writer), Status::Writing);
        let (manifest, publisher) = (Some(manifest), None);
        self.under_way = Some(ShareUnderWay { state: *state, manifest, writer, publisher, status });
        Ok(())
    }

    /// Begins to publish the current save if all have written their parts; this too happens during training.
    pub fn poll(&mut self, all_gather: &mut AllGather<'_>) -> Result<(), Fault> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(()) };
        if let Some(writer) = under_way.writer.take_if(|writer| writer.is_finished()) {
            let died = || (Status::Failed(writer_died()), Vec::new());
            (under_way.status, self.spent) = writer.join().unwrap_or_else(died);
        }
        if let Some(publisher) = under_way.publisher.take_if(|publisher| publisher.is_finished()) {
            self.end(&under_way.state, publisher.join().unwrap_or_else(|| Err(writer_died())));
            under_way.status = Status::Over;
        }
        let shared: Result<Vec<Status>, Fault> = self.share(all_gather, &under_way.status);
        let all = match shared {
            Ok(all) => all,
            Err(fault) => {
                self.under_way = Some(under_way); // its threads may still write
                return Err(fault);
            }
        };
        if all.iter().any(|status| matches!(status, Status::Over)) {
            return Ok(()); // rank 0 reports the result at the end
        }
        let is_written = !all.iter().any(|status| matches!(status, Status::Writing));
        if self.rank == Rank(0)
            && is_written
            && let Some(manifest) = under_way.manifest.take()
        {
            let (store, step) = (self.saver.store().clone(), under_way.state.step);
            under_way.publisher = Some(begin_writer(move || match shards(all) {
                Ok(shards) => store.publish(Manifest { shards, ..manifest }),
                Err(fault) => {
                    store.discard(step);
                    Err(fault)
                }
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
        all_gather: &mut AllGather<'_>,
    ) -> Result<Option<Result<PathBuf, Fault>>, Fault> {
        self.settle(all_gather)?;
        let last: Vec<Option<_>> = self.share(all_gather, &self.last)?;
        self.last = None;
        Ok(last.into_iter().next().flatten())
    }

    /// Returns true if a save is in progress, or has ended and [`finish`](Shares::finish) has not
    /// returned its result. After a death it is to be begun again, even if this is so on only one rank.
    pub fn is_unfinished(&self) -> bool {
        self.under_way.is_some() || self.last.is_some()
    }

    /// Waits for the current save. Ranks exchange signs of life now and then, so that none takes a
    /// slow disk for a lost peer.
    pub fn settle(&mut self, all_gather: &mut AllGather<'_>) -> Result<(), Fault> {
        while let Some(under_way) = &self.under_way {
            let told = Instant::now();
            while under_way.is_writing() && told.elapsed() < TELL {
                thread::sleep(Duration::from_millis(2));
            }
            self.poll(all_gather)?;
        }
        Ok(())
    }

    fn end(&mut self, state: &State, ended: Result<PathBuf, Fault>) {
        if let Err(fault) = &ended
            && self.rank == Rank(0)
            && !state.is_last
        {
            self.saver.warn(fault);
        }
        self.last = Some(ended);
    }

    /// Returns the value of every rank.
    fn share<T: Serialize + DeserializeOwned>(
        &self,
        all_gather: &mut AllGather<'_>,
        own: &T,
    ) -> Result<Vec<T>, Fault> {
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

/// Joins the threads of a save that is given up after a rank's death: the same save may be begun again.
impl Drop for Shares<'_> {
    fn drop(&mut self) {
        let Some(ShareUnderWay { writer, publisher, .. }) = self.under_way.take() else { return };
        let _ = (writer.map(WriterThread::join), publisher.map(WriterThread::join));
    }
}

impl ShareUnderWay {
    fn is_writing(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !writer.is_finished())
            || self.publisher.as_ref().is_some_and(|publisher| !publisher.is_finished())
    }
}

/// Returns the files that all have written, or the error of one that could not.
fn shards(all: Vec<Status>) -> Result<Vec<Shard>, Fault> {
    let written = all.into_iter().filter_map(|status| match status {
        Status::Failed(fault) => Some(Err(fault)),
        Status::Written(shard) => shard.map(Ok),
        Status::Writing | Status::Over => None,
    });
    written.collect()
}

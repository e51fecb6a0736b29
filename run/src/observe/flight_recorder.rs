//! The flight recorder: files with the last operations of each rank of a failed run.

use std::collections::BTreeMap;
use std::fs::remove_file;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use chimera_core::analyze::Work;
use chimera_core::engine::{Did, Doing, FlightRecorder};
use chimera_core::ids::Rank;
use chimera_formats::files::{FolderId, io_fault, replace};
use serde_json::json;

/// Writes the last operations of each rank of this process, once per rank. It runs after the error
/// file is written, which needs less room on a full disk and less time before a launcher kills the
/// process.
pub struct Explain {
    folder: FolderId,
    ranks: Mutex<BTreeMap<Rank, FlightRecorder>>,
}

impl Explain {
    pub(crate) fn into(folder: &Path) -> Explain {
        Explain { folder: FolderId::of(folder), ranks: Mutex::default() }
    }

    /// Returns true if the folder still belongs to this run.
    pub fn is_in_place(&self) -> bool {
        self.folder.is_there()
    }

    pub(crate) fn follow(&self, rank: Rank, recent: FlightRecorder) {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, recent);
    }

    /// Returns the flight recorder of a rank of this process, unless it has been written.
    pub(crate) fn recorder(&self, rank: Rank) -> Option<FlightRecorder> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).get(&rank).cloned()
    }

    /// Writes `ops.<rank>.jsonl`: a line for each op, all-reduce, update and wait, with its start
    /// and end in seconds since the training began. Writes nothing for a rank that has not begun,
    /// or whose file is written.
    pub fn write(&self, rank: Rank) -> Result<()> {
        let recent = self.ranks.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
        let Some(recent) = recent else { return Ok(()) };
        let path = self.folder.path().join(format!("ops.{}.jsonl", rank.0));
        let create = || {
            let mut out = BufWriter::new(replace(&path)?);
            recent.all().iter().try_for_each(|did| writeln!(out, "{}", line(did)))?;
            out.flush()
        };
        let written = create().inspect_err(|_| {
            let _ = remove_file(&path); // half a file would mislead
        });
        Ok(written.map_err(|e| io_fault("file", &path, &e))?)
    }

    /// Writes `ops.<rank>.jsonl` of every rank of this process.
    pub fn write_all(&self) -> Result<()> {
        let known = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let ranks: Vec<Rank> = known.keys().copied().collect();
        drop(known); // `write` locks it again
        ranks.into_iter().try_for_each(|rank| self.write(rank))
    }
}

fn line(Did { step, what, start, end }: &Did) -> serde_json::Value {
    let (kind, what) = match what {
        Doing::Work(Work::Cell(cell)) => ("op", cell.to_string()),
        Doing::Work(Work::Reduce(bucket)) => ("reduction", bucket.to_string()),
        Doing::Work(Work::Step(bucket)) => ("update", bucket.to_string()),
        Doing::Work(Work::Move(op)) => ("move", op.to_string()),
        Doing::Wait(awaited) => ("wait", awaited.to_string()),
    };
    json!({"step": step, kind: what, "start": start, "end": end})
}

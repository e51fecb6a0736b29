//! What the ranks of a failed run did last, as files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use chimera_core::analyze::Work;
use chimera_core::engine::{Did, Doing, Recent};
use chimera_core::ids::Rank;
use serde_json::json;

use super::io_fault;

/// Writes down what the ranks of this process did last: each once, from whichever thread sees the fault first.
pub struct Explain {
    folder: PathBuf,
    ranks: Mutex<BTreeMap<Rank, Recent>>,
}

impl Explain {
    pub(super) fn into(folder: &Path) -> Explain {
        Explain { folder: folder.to_path_buf(), ranks: Mutex::default() }
    }

    pub(super) fn follow(&self, rank: Rank, recent: Recent) {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, recent);
    }

    /// Writes `ops.<rank>.jsonl`: a line for each op, sum, update and wait, with its start and end in seconds
    /// since the training began. Nothing for a rank that has not begun, or whose file is written.
    pub fn write(&self, rank: Rank) -> Result<()> {
        let recent = self.ranks.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
        let Some(recent) = recent else { return Ok(()) };
        let path = self.folder.join(format!("ops.{}.jsonl", rank.0));
        let create = || {
            let mut out = BufWriter::new(File::create(&path)?);
            recent.all().iter().try_for_each(|did| writeln!(out, "{}", line(did)))?;
            out.flush()
        };
        Ok(create().map_err(|e| io_fault("file", &path, &e))?)
    }
}

fn line(Did { step, what, start, end }: &Did) -> serde_json::Value {
    let (kind, what) = match what {
        Doing::Work(Work::Cell(cell)) => ("op", cell.to_string()),
        Doing::Work(Work::Reduce(bucket)) => ("sum", bucket.to_string()),
        Doing::Work(Work::Step(bucket)) => ("update", bucket.to_string()),
        Doing::Wait(awaited) => ("wait", awaited.to_string()),
    };
    json!({"step": step, kind: what, "start": start, "end": end})
}

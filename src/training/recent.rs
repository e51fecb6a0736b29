//! What a rank of a failed run did last, as a file.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

use chimera_core::analyze::{Awaited, Work};
use chimera_core::engine::{Did, Doing};
use chimera_core::ids::Rank;
use serde_json::json;

/// Writes `ops.<rank>.jsonl`: a line for each op, sum, update and wait, with its start and end in seconds
/// since the training began.
pub(super) fn write(dir: &Path, rank: Rank, recent: &[Did]) -> Result<()> {
    let mut out = BufWriter::new(File::create(dir.join(format!("ops.{}.jsonl", rank.0)))?);
    for Did { step, what, start, end } in recent {
        let (kind, what) = match what {
            Doing::Work(Work::Cell(cell)) => ("op", cell.to_string()),
            Doing::Work(Work::Reduce(bucket)) => ("sum", bucket.to_string()),
            Doing::Work(Work::Step(bucket)) => ("update", bucket.to_string()),
            Doing::Wait(Awaited::Message(token)) => ("wait", token.to_string()),
            Doing::Wait(Awaited::Sum(bucket)) => ("wait", format!("the sum of {bucket}")),
            Doing::Wait(Awaited::Weights(bucket)) => ("wait", format!("the weights of {bucket}")),
            Doing::Wait(Awaited::Agreement) => ("wait", "the agreement of all ranks".into()),
        };
        writeln!(out, "{}", json!({"step": step, kind: what, "start": start, "end": end}))?;
    }
    out.flush()
}

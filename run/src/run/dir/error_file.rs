//! The file in a run's folder that says why a rank has ended.

use std::fs::{remove_file, rename};
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use chimera_formats::files::disk::part_of;
use chimera_formats::files::{io_fault, replace};
use serde_json::json;

/// Writes `error.<rank>.json` into the folder of a run: the reason why this process, which is
/// `rank`, ends. If the cause lies with another rank, that rank is its peer.
pub fn write_error(folder: &Path, rank: Rank, fault: &Fault) -> Result<()> {
    let message = if fault.rank == rank { fault.message.clone() } else { fault.to_string() };
    let peer = fault.peer.or_else(|| (fault.rank != rank).then_some(fault.rank));
    let error = json!({
        "rank": rank, "pid": std::process::id(), "code": fault.class.code(), "class": fault.class,
        "step": fault.step, "op": fault.op, "peer": peer, "message": message,
    });
    let path = folder.join(format!("error.{}.json", rank.0));
    // A reader finds the whole file or none, even if this rank is killed. A slow disk must not hold it up.
    let part = part_of(&path);
    let write = || {
        replace(&part)?.write_all(format!("{error:#}\n").as_bytes())?;
        rename(&part, &path)
    };
    let written = write().inspect_err(|_| {
        let _ = remove_file(&part); // the error that counts is the first
    });
    Ok(written.map_err(|e| io_fault("file", &path, &e))?)
}

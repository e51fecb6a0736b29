//! The summary of a run that has no steps left. It is the one written at the run's end, or, if the
//! run was killed before that, one made from its checkpoint and metrics.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::parts::terminal::progress::Say;
use crate::cli::parts::training::followed::Followed;
use crate::cli::parts::training::outcome::Outcome;
use crate::formats::files::text_regular;
use crate::run::{Place, Run, SUMMARY};

/// Longer files cannot be summaries.
const MAX_BYTES: u64 = 16 << 20;
/// Keys that the file has in addition to the printed summary.
const OF_THE_FILE: [&str; 2] = ["advice", "planned_by"];

/// Returns the summary of a run that begins after its last step, and writes it if it is missing. A
/// run that begins with another run's checkpoint and has no step of its own only has its number of
/// steps.
pub(super) fn summary(run: &Run, place: &Place, say: &Say) -> Result<Value> {
    let n_steps = run.first_step();
    if !place.goes_on(run.config()) {
        return Ok(json!({ "run": place.path(), "steps": n_steps }));
    }
    if let Some(mut written) = written(place.path(), n_steps) {
        written["run"] = json!(place.path());
        return Ok(written);
    }
    // If metrics are lost, the summary is written without them.
    let followed = Followed::open(place.path()).and_then(|mut followed| {
        followed.read()?;
        Ok(followed.last)
    });
    let last = followed.ok().flatten().filter(|last| last.step.checked_add(1) == Some(n_steps));
    let outcome = Outcome { run, place, say, hints: Vec::new(), last };
    outcome.show(&run.trained_before()?, None)
}

/// Reads the summary that the run in a folder wrote at its end, if it has this number of steps.
fn written(folder: &Path, n_steps: u64) -> Option<Value> {
    let text = text_regular(&folder.join(SUMMARY), MAX_BYTES).ok().flatten()?;
    let mut summary: Value = serde_json::from_str(&text).ok()?;
    let keys = summary.as_object_mut()?;
    OF_THE_FILE.iter().for_each(|key| {
        keys.remove(*key);
    });
    (summary["steps"].as_u64() == Some(n_steps)).then_some(summary)
}

//! What a run came to that has no step left: as it wrote at its end, or if it was killed before that, as its checkpoint and
//! its metrics tell.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::parts::terminal::progress::Say;
use crate::cli::parts::training::followed::Followed;
use crate::cli::parts::training::outcome::Outcome;
use crate::formats::files::text_regular;
use crate::run::{Place, Run, SUMMARY};

/// Longer files are no summaries.
const MAX_BYTES: u64 = 16 << 20;
/// What the file has beside the summary that is printed.
const OF_THE_FILE: [&str; 2] = ["advice", "planned_by"];

/// The summary of a run that begins behind its last step; it is written if the run has none of that step. What has a
/// checkpoint of another run and no step of its own has no more than its number of steps.
pub(super) fn summary(run: &Run, place: &Place, say: &Say) -> Result<Value> {
    let n_steps = run.first_step();
    if !place.goes_on(run.config()) {
        return Ok(json!({ "run": place.path(), "steps": n_steps }));
    }
    if let Some(mut written) = written(place.path(), n_steps) {
        written["run"] = json!(place.path());
        return Ok(written);
    }
    // Metrics that are lost are no reason to write nothing.
    let followed = Followed::open(place.path()).and_then(|mut followed| {
        followed.read()?;
        Ok(followed.last)
    });
    let last = followed.ok().flatten().filter(|last| last.step.checked_add(1) == Some(n_steps));
    let outcome = Outcome { run, place, say, hints: Vec::new(), last };
    outcome.show(&run.trained_before()?, None)
}

/// What the run in a folder wrote at its end after so many steps.
fn written(folder: &Path, n_steps: u64) -> Option<Value> {
    let text = text_regular(&folder.join(SUMMARY), MAX_BYTES).ok().flatten()?;
    let mut summary: Value = serde_json::from_str(&text).ok()?;
    let keys = summary.as_object_mut()?;
    OF_THE_FILE.iter().for_each(|key| {
        keys.remove(*key);
    });
    (summary["steps"].as_u64() == Some(n_steps)).then_some(summary)
}

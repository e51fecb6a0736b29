//! The state of a run as JSON.

use serde_json::{Value, json};

use crate::cli::parts::training::followed::{Followed, RunState};

/// Returns the run's state and last step, its members, and means of waits and links over the last
/// steps.
pub(super) fn of(run: &Followed) -> Value {
    let (state, error) = match &run.state {
        RunState::AtWork => ("running", None),
        RunState::Over => ("ended", None),
        RunState::Failed(why) => ("failed", Some(why)),
    };
    json!({
        "run": run.folder().display().to_string(),
        "state": state,
        "error": error,
        "steps": run.n_steps,
        "seconds_left": run.seconds_left(),
        "last": run.last,
        "members": run.members,
        "means": run.last_steps.means(),
    })
}

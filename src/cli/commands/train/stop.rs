//! Stopping a run by signals: the actions and messages of the first and the second one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::suggest;
use crate::cli::parts::terminal::console::{duration, tell};
use crate::cli::parts::terminal::leftover::leave;
use crate::cli::parts::terminal::signals;
use crate::formats::checkpoint::Store;
use crate::run::{Pace, Run};

/// A signal that follows the first within this time is part of the same request: GNU `timeout` and
/// launchers signal a process and then its whole group.
const ONE_WISH: Duration = Duration::from_secs(1);

/// The request to stop a run, and the facts for its messages.
pub(crate) struct Stop {
    requested: AtomicBool,
    first: OnceLock<Instant>,
    run: OnceLock<Begun>,
}

/// A run that has begun.
struct Begun {
    pace: Option<Arc<Pace>>,
    /// The reason to finish the current step, if there is one.
    finishes: Option<&'static str>,
    folder: PathBuf,
    resume: String,
}

impl Stop {
    /// Listens for SIGINT and SIGTERM. The first signal requests a stop, after `look` has returned
    /// whether this process prints messages. A second one at least a second later ends the process
    /// at once without saving.
    pub(crate) fn on_signal(look: impl Fn() -> bool + Send + 'static) -> Result<Arc<Stop>> {
        let (requested, first, run) = (AtomicBool::new(false), OnceLock::new(), OnceLock::new());
        let stop = Arc::new(Stop { requested, first, run });
        let on_signal = Arc::clone(&stop);
        signals::on_signal(move || {
            let tells = look();
            let is_second = on_signal.is_signalled();
            on_signal.requested.store(true, Ordering::Relaxed);
            if on_signal.first.get_or_init(Instant::now).elapsed() < ONE_WISH && is_second {
                return;
            }
            let run = on_signal.run.get();
            match is_second {
                false if tells => tell(stopping(run)),
                true if tells => tell(stopped_at_once(run)),
                _ => {}
            }
            if is_second {
                leave(signals::STOPPED);
            }
        })?;
        Ok(stop)
    }

    /// The flag that the run checks.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.requested
    }

    /// Returns true if the request came by a signal.
    pub(crate) fn is_signalled(&self) -> bool {
        self.first.get().is_some()
    }

    /// Sets the run to stop; its files are in `folder`.
    pub(crate) fn concerns(&self, run: &Run, folder: &Path) {
        let resume = suggest::to_resume(run.config().output.out.is_some(), folder);
        let (pace, finishes, folder) = (run.pace(), run.finishes_steps(), folder.to_path_buf());
        let _ = self.run.set(Begun { pace, finishes, folder, resume });
    }
}

/// The message after the first signal.
fn stopping(run: Option<&Begun>) -> String {
    let what = match run {
        None => "stopping before the first step".to_string(),
        Some(Begun { finishes: None, .. }) => {
            "stopping: the step under way is discarded, unless all workers are done with it".into()
        }
        Some(Begun { finishes: Some(why), pace, .. }) => {
            let within = pace.as_ref().and_then(|pace| pace.look());
            let name = within.map_or("the step under way".into(), |within| within.name());
            let left = within.and_then(|within| within.left_s());
            let left = left.map_or(String::new(), |s| format!(", in about {}", duration(s)));
            format!("stopping at the end of {name}{left}: {why}")
        }
    };
    format!("{what}; press Ctrl-C again to stop immediately")
}

/// The message after the second signal.
fn stopped_at_once(run: Option<&Begun>) -> String {
    let newest = |run: &Begun| {
        let entries = Store::of(&run.folder).entries().unwrap_or_default();
        entries.into_iter().rfind(|entry| entry.is_whole).map(|entry| entry.step)
    };
    match run.map(|run| (newest(run), &run.resume)) {
        Some((Some(n_steps), resume)) => {
            format!(
                "stopped immediately: the last checkpoint has {n_steps} steps; resume with: {resume}"
            )
        }
        Some((None, _)) | None => "stopped immediately: there is no checkpoint".into(),
    }
}

/// The message of a run that was stopped after `n_steps` steps and may have `discarded` the next.
pub(super) fn stopped(n_steps: u64, discarded: bool, resume: &str) -> String {
    let Some(last) = n_steps.checked_sub(1) else {
        return format!(
            "stopped on request before the first step was done; begin again with: {resume}"
        );
    };
    let discarded = if discarded {
        format!("; step {n_steps} was under way and is discarded")
    } else {
        String::new()
    };
    format!("stopped on request after step {last}{discarded}; resume with: {resume}")
}

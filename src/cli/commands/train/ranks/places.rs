//! Free places of a run over QUIC, and the machines that take them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use chimera_comm_quic::Event;
use chimera_core::ids::listed;

use super::files::own_store;
use crate::cli::parts::terminal::console::{self, duration, tell, warn};
use crate::cli::parts::training::suggest;
use crate::formats::checkpoint::Store;
use crate::run::REJOIN;

/// The folder of a run, once it is known, where a newcomer asks for a meeting.
#[derive(Default)]
pub(crate) struct Rejoins {
    pub(super) folder: Arc<OnceLock<PathBuf>>,
}

impl Rejoins {
    /// Returns a function that notes the folder of a run, and gives its store.
    pub(super) fn store(&self) -> impl Fn(&Path) -> Store + use<> {
        let folder = Arc::clone(&self.folder);
        move |run| {
            let _ = folder.set(run.to_path_buf());
            own_store(run)
        }
    }

    /// Returns a function for events that passes a newcomer's wish on to the run, and all to `tell`.
    pub(crate) fn told(
        &self,
        tell: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> Arc<dyn Fn(&Event<'_>) + Send + Sync> {
        let folder = Arc::clone(&self.folder);
        Arc::new(move |event| {
            if let (Event::Ready(_), Some(folder)) = (event, folder.get()) {
                let _ = std::fs::write(folder.join(REJOIN), ""); // it waits until the next meeting
            }
            tell(event);
            if let (Event::GivesUp, Some(folder)) = (event, folder.get()) {
                tell_how_to_resume(folder);
            }
        })
    }
}

fn tell_how_to_resume(folder: &Path) {
    let entries = Store::of(folder).entries().unwrap_or_default();
    if let Some(newest) = entries.into_iter().rfind(|entry| entry.is_whole) {
        let command = suggest::to_resume(false, folder);
        console::tell(format_args!(
            "the last checkpoint has {} steps; resume with: {command}",
            newest.step
        ));
    }
}

/// Prints what happens to the places of a run. `ticket` returns how to take one.
pub(crate) fn tell_of(event: &Event<'_>, ticket: impl Fn() -> String) {
    match event {
        Event::Came(rank, _) => tell(format_args!("a machine takes the place of {rank}")),
        Event::Waits(_) => tell("a machine waits until a place is free"),
        Event::Left(rank, reason) => warn(&format!("{rank} is gone: {reason}")),
        Event::Missing { ranks, left, .. } => {
            let waits = left.map_or(String::new(), |left| {
                format!("waiting up to {}; ", duration(left.as_secs_f64()))
            });
            tell(format_args!("{waits}the place of {} is free: {}", listed(ranks), ticket()));
        }
        Event::Ready(_) | Event::GivesUp => {}
    }
}

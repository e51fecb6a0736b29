//! The files of a run on a machine that may not be the host.

use std::path::{Path, PathBuf};

use crate::formats::checkpoint::Store;

/// The files of a run, as a rank has them.
pub(super) struct RunFiles<'t> {
    /// Gives the place where it has a file of rank 0.
    pub(super) local: Box<dyn Fn(&Path) -> PathBuf + Sync + 't>,
    /// The store of its part of checkpoints, in the folder of the run.
    pub(super) store: Box<dyn Fn(&Path) -> Store + Sync + 't>,
}

impl RunFiles<'_> {
    /// The files of ranks that share a disk, or of rank 0.
    pub(super) fn shared() -> Self {
        RunFiles { local: Box::new(Path::to_path_buf), store: Box::new(own_store) }
    }
}

/// Returns the store in the folder of a run on this machine.
pub(super) fn own_store(folder: &Path) -> Store {
    let store = Store::of(folder);
    #[cfg(all(unix, debug_assertions))]
    let store = store.on(super::fault_injection::disk());
    store
}

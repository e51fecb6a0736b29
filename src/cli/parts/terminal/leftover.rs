//! The end of a process that leaves no folder of its own.

use std::fs::remove_dir_all;
#[cfg(feature = "quic")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The folder that goes when this process ends.
static LEFTOVER: OnceLock<PathBuf> = OnceLock::new();

/// Removes a folder at the end of this process by [`leave`].
#[cfg(feature = "quic")]
pub(crate) fn remove_at_exit(folder: &Path) {
    let _ = LEFTOVER.set(folder.to_path_buf());
}

/// Ends this process at once, without the folder that is not to stay.
pub(crate) fn leave(code: i32) -> ! {
    LEFTOVER.get().into_iter().for_each(|folder| drop(remove_dir_all(folder)));
    std::process::exit(code)
}

//! The folder of a run: finding it, locking it, and its files.

pub(super) mod claims;
pub(super) mod differences;
pub(super) mod earlier_files;
pub(super) mod error_file;
pub(super) mod folder;
pub(super) mod lock;
pub(super) mod metrics_writer;
pub(super) mod model_place;
pub(super) mod own_files;
pub(super) mod place;
pub(super) mod planned_checkpoint;
pub(super) mod runs;
pub(super) mod settings_file;

//! How files are read and written here: none is read without a limit, none is found half written.

pub(crate) mod disk;
pub(crate) mod tensors;

use std::path::Path;

use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

/// The fault of a file that failed while a run was under way.
pub(crate) fn io_fault(what: &str, path: &Path, error: &dyn ToString) -> Fault {
    let message = format!("cannot write {what} {}: {}", path.display(), error.to_string());
    Fault::new(Class::Io, Rank(0), message)
}

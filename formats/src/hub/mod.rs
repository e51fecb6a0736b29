//! Models on a hub: `org/name` and `name@revision` wherever the folder of a model is named.
//!
//! The files lie in the cache of `huggingface_hub`, and environment variables have its names. They are
//! fetched in an order by which a file says that those before it are whole: texts, `config.json`,
//! shards, their index. Blobs are compared with the sizes and hashes that the hub tells before they
//! get their names. The crate hf-hub is not used: both versions bring a licence that this project does
//! not accept, the one an asynchronous runtime and a C library, the other panics at a bad redirect.

#[cfg(feature = "hub")]
mod client;
#[cfg(feature = "hub")]
mod download;
mod error;
#[cfg_attr(not(feature = "hub"), path = "no_fetch.rs")]
mod fetch;
mod name;
mod place;
mod progress;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use error::{HubError, Source, Token};
pub use name::HubName;
pub use progress::{Event, report_to};

use place::Place;

/// The files of a model that are wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Everything except the weights: sizes, tokenizer, template of chats, ends of generation.
    Texts,
    /// These, and the weights.
    All,
}

/// Returns the folder of a model. A `dir` that exists, or that cannot be a name on a hub, is
/// returned unchanged. For a name, the part of the model is fetched into the cache, and its folder
/// there is returned. In one process a name stands for one commit.
///
/// # Errors
/// [`HubError`].
pub fn folder_of(dir: &Path, part: Part) -> Result<PathBuf, HubError> {
    let folder = match named(dir) {
        Some(name) => fetched(&name, part)?,
        None => dir.to_path_buf(),
    };
    if part == Part::All {
        complete(&folder)?;
    }
    Ok(folder)
}

/// Fetches a model, unless this process has done so before.
fn fetched(name: &HubName, part: Part) -> Result<PathBuf, HubError> {
    static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(folder) = found.get(&name.to_string()) {
        return Ok(folder.clone());
    }
    let folder = fetch::fetch(&Place::of_environment()?, name, part)?;
    found.insert(name.to_string(), folder.clone());
    Ok(folder)
}

/// Fetches the weights into a folder of the cache that lacks them. Any other folder stays as it is.
///
/// # Errors
/// [`HubError`].
pub fn complete(folder: &Path) -> Result<(), HubError> {
    let Some(name) = HubName::of_snapshot(folder) else { return Ok(()) };
    let Some(cache) = folder.ancestors().nth(3).filter(|_| !place::has_weights(folder)) else {
        return Ok(());
    };
    fetch::fetch(&Place { cache: cache.to_path_buf() }, &name, Part::All).map(drop)
}

/// Returns the folder of a model as [`folder_of`] does, but never asks the hub: a name that is not in
/// the cache stays as it is.
pub fn known_folder_of(dir: &Path) -> PathBuf {
    let in_cache = |name| Place::of_environment().ok()?.find(&name, Part::Texts);
    named(dir).and_then(in_cache).unwrap_or_else(|| dir.to_path_buf())
}

/// Reads `dir` as the name of a model on a hub, unless there is a folder of that name.
pub fn named(dir: &Path) -> Option<HubName> {
    HubName::of(dir).filter(|_| dir.symlink_metadata().is_err())
}

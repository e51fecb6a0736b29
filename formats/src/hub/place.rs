//! The cache of this machine, by the conventions of `huggingface_hub`.

use std::env::{home_dir, var};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use super::error::HubError;
use super::name::is_commit;
use super::{HubName, Part};
use crate::hf::{CONFIG, INDEX, Index, WEIGHTS};

/// The cache.
pub(super) struct Place {
    /// Folder of the cache.
    pub(super) cache: PathBuf,
}

impl Place {
    /// Returns the one that the environment names.
    pub(super) fn of_environment() -> Result<Place, HubError> {
        let named = said("HF_HUB_CACHE").or_else(|| said("HUGGINGFACE_HUB_CACHE"));
        let cache = named.map(PathBuf::from).or_else(|| Some(home()?.join("hub")));
        Ok(Place { cache: cache.ok_or(HubError::NoCache)? })
    }

    /// Returns the folder of a model's files in the cache.
    pub(super) fn repository(&self, name: &HubName) -> PathBuf {
        self.cache.join(name.folder())
    }

    /// Returns the folder of a commit.
    pub(super) fn snapshot(&self, name: &HubName, commit: &str) -> PathBuf {
        self.repository(name).join("snapshots").join(commit)
    }

    /// Returns the file that says the commit of a branch or tag.
    pub(super) fn reference(&self, name: &HubName) -> PathBuf {
        self.repository(name).join("refs").join(name.revision())
    }

    /// Returns the folder of a model in the cache, if that part of it is there as a whole.
    pub(super) fn find(&self, name: &HubName, part: Part) -> Option<PathBuf> {
        let commit = if name.is_pinned() {
            name.revision().to_string()
        } else {
            read_to_string(self.reference(name)).ok()?.trim().to_string()
        };
        let folder = self.snapshot(name, Some(&*commit).filter(|commit| is_commit(commit))?);
        let is_there =
            folder.join(CONFIG).exists() && (part == Part::Texts || has_weights(&folder));
        is_there.then_some(folder)
    }
}

/// Returns true if a folder has all files of the weights.
pub(super) fn has_weights(folder: &Path) -> bool {
    let in_shards = || {
        let index = Index::read(&folder.join(INDEX)).ok()?;
        Some(index.shards().iter().all(|shard| folder.join(shard).exists()))
    };
    folder.join(WEIGHTS).exists() || in_shards().unwrap_or(false)
}

/// Returns the folder of the cache and of the token.
pub(super) fn home() -> Option<PathBuf> {
    let below = |folder: String| Path::new(&folder).join("huggingface");
    let named = said("HF_HOME").map(PathBuf::from);
    let in_cache = || said("XDG_CACHE_HOME").map(below);
    named.or_else(in_cache).or_else(|| Some(home_dir()?.join(".cache/huggingface")))
}

/// Returns the value of an environment variable that is not blank.
pub(super) fn said(key: &str) -> Option<String> {
    let value = var(key).ok()?;
    Some(value.trim().to_string()).filter(|value| !value.is_empty())
}

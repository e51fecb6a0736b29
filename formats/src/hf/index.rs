//! The index of weights in several files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::config::read_small;

/// Larger indices are refused before they are read.
const MAX_INDEX_BYTES: u64 = 1 << 26;

/// The file of each tensor.
#[derive(Deserialize)]
pub(crate) struct Index {
    pub(super) weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads an index.
    pub(crate) fn read(path: &Path) -> Result<Index> {
        Ok(serde_json::from_slice(&read_small(path, MAX_INDEX_BYTES)?)?)
    }

    /// Returns the files, each once.
    pub(crate) fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }
}

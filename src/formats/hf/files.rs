//! The files of a model's weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::config::read_small;
use super::shard::ShardFile;
use super::{INDEX, WEIGHTS};

/// Larger indices are refused before they are read.
const MAX_INDEX_BYTES: u64 = 1 << 26;

/// The files of the weights.
pub(super) fn shards(dir: &Path) -> Result<Vec<ShardFile>> {
    let (whole, index) = (dir.join(WEIGHTS), dir.join(INDEX));
    if whole.exists() {
        return Ok(vec![ShardFile::open(&whole)?]);
    }
    ensure!(
        index.exists(),
        "{} holds neither {WEIGHTS} nor {INDEX}; files of pickle (.bin, .pt) are never read",
        dir.display()
    );
    indexed(dir, &index).with_context(|| index.display().to_string())
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that an index names, which hold the tensors that it says and no others.
fn indexed(dir: &Path, index: &Path) -> Result<Vec<ShardFile>> {
    let index: Index = serde_json::from_slice(&read_small(index, MAX_INDEX_BYTES)?)?;
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    let mut shards = Vec::new();
    let mut n_tensors = 0;
    for name in names {
        let shard = ShardFile::open(&inside(dir, name)?)?;
        for (tensor, _) in shard.tensors() {
            let said = index.weight_map.get(&tensor).map(String::as_str);
            ensure!(said == Some(name), "{name} holds {tensor}, which the index does not say");
            n_tensors += 1;
        }
        shards.push(shard);
    }
    if n_tensors < index.weight_map.len() {
        let held: BTreeSet<String> =
            shards.iter().flat_map(ShardFile::tensors).map(|(name, _)| name).collect();
        let lacking = index.weight_map.iter().find(|(tensor, _)| !held.contains(*tensor));
        if let Some((tensor, file)) = lacking {
            bail!("{file} lacks {tensor}");
        }
    }
    Ok(shards)
}

/// The path of a file that is named inside another one: plain, in the folder, and not a link out of it, but for those
/// of the hub's cache, where `snapshots/<revision>` links to `blobs`.
fn inside(dir: &Path, name: &str) -> Result<PathBuf> {
    let mut components = Path::new(name).components();
    let is_plain = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(only)), None) if only == name
    );
    ensure!(is_plain, "`{name}` is not the plain name of a file in this folder");
    let path = dir.join(name);
    let real = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
    let folder = dir.canonicalize()?;
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs =
        snapshots.and_then(|snapshots| snapshots.with_file_name("blobs").canonicalize().ok());
    ensure!(
        real.parent() == Some(&folder) || blobs.is_some() && real.parent() == blobs.as_deref(),
        "`{name}` is a link out of the folder: copy the file itself"
    );
    Ok(path)
}

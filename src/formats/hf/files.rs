//! The files in the folder of a model.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::config::read_small;
use super::shard::ShardFile;
use super::{INDEX, WEIGHTS};

/// Larger indices are refused before they are read.
const MAX_INDEX_BYTES: u64 = 1 << 26;

/// The path of the file `name` of the model in `dir`, or `None` if there is no such file.
///
/// # Errors
/// If the file cannot be looked at, or is a link out of the folder.
pub(crate) fn file_in(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let path = dir.join(name);
    match path.symlink_metadata() {
        Ok(_) => inside(dir, name).map(Some),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The files of the weights.
pub(super) fn shards(dir: &Path) -> Result<Vec<ShardFile>> {
    if let Some(whole) = file_in(dir, WEIGHTS)? {
        return Ok(vec![ShardFile::open(&whole)?]);
    }
    let Some(index) = file_in(dir, INDEX)? else {
        bail!(
            "{} holds neither {WEIGHTS} nor {INDEX}; files of pickle (.bin, .pt) are never read",
            dir.display()
        );
    };
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

/// The path of a file that is named inside another one: a plain name of a file in the folder. A link out of the folder
/// would let a model carry any file of this machine into what is exported. Links of the hub's cache are allowed, where
/// `snapshots/<revision>` links to `blobs`. Readers refuse what is not a regular file.
fn inside(dir: &Path, name: &str) -> Result<PathBuf> {
    let mut components = Path::new(name).components();
    let is_plain = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(only)), None) if only == name
    );
    ensure!(is_plain, "`{name}` is not the plain name of a file in this folder");
    let path = dir.join(name);
    let unread = || format!("cannot read {}", path.display());
    let real = path.canonicalize().with_context(unread)?;
    let folder = dir.canonicalize()?;
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.map(|snapshots| snapshots.with_file_name("blobs"));
    let is_inside = real.parent() == Some(&folder) || real.parent() == blobs.as_deref();
    ensure!(
        is_inside || !real.metadata().with_context(unread)?.is_file(),
        "{}: `{name}` is a link out of the folder: copy the file itself",
        dir.display()
    );
    Ok(path)
}

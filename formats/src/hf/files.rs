//! The files of a model's weights.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::folder::{file_in, inside};
use super::index::Index;
use super::shard::ShardFile;
use super::{INDEX, WEIGHTS};

/// Opens the files of the weights.
pub(super) fn shards(dir: &Path) -> Result<Vec<ShardFile>> {
    if let Some(whole) = file_in(dir, WEIGHTS)? {
        return Ok(vec![ShardFile::open(&whole)?]);
    }
    let Some(index) = file_in(dir, INDEX)? else {
        bail!(
            "{} holds neither {WEIGHTS} nor {INDEX}; pickle files (.bin, .pt) are never read",
            dir.display()
        );
    };
    indexed(dir, &index).with_context(|| index.display().to_string())
}

/// Opens the files that an index names. They must hold exactly the tensors that it lists.
fn indexed(dir: &Path, index: &Path) -> Result<Vec<ShardFile>> {
    let index = Index::read(index)?;
    let mut shards = Vec::new();
    let mut n_tensors = 0;
    for name in index.shards() {
        let shard = ShardFile::open(&inside(dir, name)?)?;
        for (tensor, _) in shard.tensors() {
            let said = index.weight_map.get(&tensor).map(String::as_str);
            ensure!(
                said == Some(name),
                "{name} holds {tensor}, which the index does not list there"
            );
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

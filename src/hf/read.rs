//! Reading a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::model::{Architecture, Cut, ModelConfig};
use chimera_core::stage::Param;
use safetensors::tensor::TensorInfo;
use serde::Deserialize;

use super::config::{read_config, read_small};
use super::names::{copies, from_hf, parts, twin};
use super::shard::Shard;
use super::{INDEX, WEIGHTS};

/// Larger indices are refused before they are read.
const MAX_INDEX_BYTES: u64 = 1 << 26;
/// The most names that a refusal lists.
const N_NAMED: usize = 3;

/// A whole model on the host.
#[derive(Clone, PartialEq, Debug)]
pub struct Pretrained {
    /// What it is.
    pub config: ModelConfig,
    /// Every tensor by its parameter, in the order of [`ModelConfig::params`].
    pub weights: Vec<(Param, Vec<f32>)>,
}

/// Where the values of a tensor are.
type Place<'s> = (&'s Shard, &'s str, &'s TensorInfo);

/// Reads the model in the folder `dir`.
///
/// # Errors
/// Names file and tensor of whatever does not fit; nothing is allocated for values before all names and shapes do.
pub fn read(dir: &Path) -> Result<Pretrained> {
    let config = read_config(dir)?;
    let params = config.params(&Cut { blocks: 0..config.layers, first: true, last: true });
    let shards = shards(dir)?;
    let mut places = places(config.architecture, &shards)?;
    let copies = copies(&config).into_iter();
    let copies: Vec<(&str, Place)> =
        copies.filter_map(|(name, ours)| Some((ours, places.remove(name)?))).collect();
    if let Some((name, ours)) = twin(&config)
        && let Some(place) = places.remove(name)
    {
        places.insert(ours.to_owned(), place);
    }

    let place = || dir.display().to_string();
    let mut found = Vec::with_capacity(params.len());
    let mut missing = Vec::new();
    for param in params {
        let mut tensors = Vec::new();
        for (name, _) in parts(&param) {
            match places.remove(&name) {
                Some(place) => tensors.push(place),
                None => missing.push(name),
            }
        }
        found.push((param, tensors));
    }
    ensure!(missing.is_empty(), "{}: {} missing: {}", place(), are(missing.len()), list(&missing));
    let unknown: Vec<String> = places.values().map(|(_, name, _)| (*name).to_owned()).collect();
    ensure!(
        unknown.is_empty(),
        "{}: {} unknown in a {} of {} layers: {}",
        place(),
        are(unknown.len()),
        config.architecture,
        config.layers,
        list(&unknown)
    );
    for (param, tensors) in &found {
        let mut shape = param.shape.clone();
        shape[0] /= tensors.len();
        for (shard, name, tensor) in tensors {
            ensure!(
                tensor.shape == shape,
                "{}: {name} has shape {:?}, but config.json makes it {shape:?}",
                shard.path.display(),
                tensor.shape,
            );
        }
    }
    let read = |(shard, name, tensor): Place| shard.values(name, tensor);
    let weights = found.into_iter().map(|(param, tensors)| {
        let values: Vec<_> = tensors.into_iter().map(read).collect::<Result<_>>()?;
        Ok((param, values.concat()))
    });
    let weights: Vec<(Param, Vec<f32>)> = weights.collect::<Result<_>>()?;
    for (ours, copy) in copies {
        let Some((param, values)) = weights.iter().find(|(param, _)| param.name == ours) else {
            continue;
        };
        ensure!(
            copy.2.shape == param.shape && read(copy)? == *values,
            "{}: {} differs from {ours}, but config.json ties them: \
             set `tie_word_embeddings` to false",
            place(),
            copy.1
        );
    }
    Ok(Pretrained { config, weights })
}

/// The files of the weights.
fn shards(dir: &Path) -> Result<Vec<Shard>> {
    let (whole, index) = (dir.join(WEIGHTS), dir.join(INDEX));
    if whole.exists() {
        return Ok(vec![Shard::open(&whole)?]);
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
fn indexed(dir: &Path, index: &Path) -> Result<Vec<Shard>> {
    let index: Index = serde_json::from_slice(&read_small(index, MAX_INDEX_BYTES)?)?;
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    let mut shards = Vec::new();
    let mut n_tensors = 0;
    for name in names {
        let shard = Shard::open(&inside(dir, name)?)?;
        for (tensor, _) in &shard.tensors {
            let said = index.weight_map.get(tensor).map(String::as_str);
            ensure!(said == Some(name), "{name} holds {tensor}, which the index does not say");
        }
        n_tensors += shard.tensors.len();
        shards.push(shard);
    }
    if n_tensors < index.weight_map.len() {
        let held: BTreeSet<&String> =
            shards.iter().flat_map(|shard| shard.tensors.iter().map(|(name, _)| name)).collect();
        let lacking = index.weight_map.iter().find(|(tensor, _)| !held.contains(tensor));
        if let Some((tensor, file)) = lacking {
            bail!("{file} lacks {tensor}");
        }
    }
    Ok(shards)
}

/// The path of a file that is named inside another one: plain, in the folder, and not a link out of it.
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
    ensure!(
        real.parent() == Some(&folder),
        "`{name}` is a link out of the folder: copy the file itself"
    );
    Ok(path)
}

/// The tensors by our names.
fn places(architecture: Architecture, shards: &[Shard]) -> Result<BTreeMap<String, Place<'_>>> {
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for shard in shards {
        for (name, tensor) in &shard.tensors {
            let Some(ours) = from_hf(architecture, name) else { continue };
            if let Some((other, also, _)) = places.insert(ours, (shard, name, tensor)) {
                bail!(
                    "{name} in {} is there twice: as {also} in {}",
                    shard.path.display(),
                    other.path.display()
                );
            }
        }
    }
    Ok(places)
}

fn are(n: usize) -> String {
    if n == 1 { "1 tensor is".into() } else { format!("{n} tensors are") }
}

fn list(names: &[String]) -> String {
    let rest = if names.len() > N_NAMED { ", …" } else { "" };
    format!("{}{rest}", names[..names.len().min(N_NAMED)].join(", "))
}

//! Reading a model.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Error, Result, bail, ensure};
use chimera_core::model::{Architecture, Cut, ModelConfig};
use chimera_core::stage::Param;
use safetensors::tensor::TensorInfo;

use super::config::read_config;
use super::dropout::DropoutRates;
use super::files::shards;
use super::names::{parts as parts_of, twin};
use super::shard::{ShardFile, precision};
use super::table::format;
use crate::SpecialIds;

/// The most names that a refusal lists.
const N_NAMED: usize = 3;

/// A whole model on the host.
#[derive(Clone, PartialEq, Debug)]
pub struct Pretrained {
    /// Sizes of the model.
    pub config: ModelConfig,
    /// Rates of dropout during training.
    pub dropout: DropoutRates,
    /// The tokens that begin, end and pad a text.
    pub ids: SpecialIds,
    /// Every tensor by its parameter, in the order of [`ModelConfig::params`].
    pub weights: Vec<(Param, Vec<f32>)>,
}

/// Reads the model in the folder `dir`.
///
/// # Errors
/// Errors of [`HfModel`].
pub fn read(dir: &Path) -> Result<Pretrained> {
    let source = HfModel::open(dir)?;
    let params = source.params().cloned().collect::<Vec<_>>().into_iter();
    let weights = params.map(|param| {
        let values = source.values(&param.name)?;
        Ok((param, values))
    });
    let weights = weights.collect::<Result<_>>()?;
    let HfModel { config, dropout, ids, .. } = source;
    Ok(Pretrained { config, dropout, ids, weights })
}

/// A model on disk, whose names and shapes were found to fit. None of its values are held.
pub struct HfModel {
    dir: PathBuf,
    config: ModelConfig,
    dropout: DropoutRates,
    ids: SpecialIds,
    tensors: Vec<Tensor>,
    /// Index of each tensor by its name.
    index: HashMap<String, usize>,
}

/// A parameter on disk.
struct Tensor {
    param: Param,
    /// Rows of the tensor, one part after the other.
    parts: Vec<TensorPlace>,
    /// Duplicates that must be equal to it.
    copies: Vec<TensorPlace>,
}

/// The place of a tensor's values.
struct TensorPlace {
    shard: Arc<ShardFile>,
    name: String,
    tensor: TensorInfo,
}

impl HfModel {
    /// Reads `config.json` and the headers of the files in the folder `dir`.
    ///
    /// # Errors
    /// If anything does not fit; the error names the file and the tensor.
    pub fn open(dir: &Path) -> Result<HfModel> {
        let ((config, dropout), ids) = (read_config(dir)?, SpecialIds::read(dir)?);
        let params = config.params(&Cut::whole(&config));
        let mut places = places(config.architecture, shards(dir)?)?;
        let copies = (format(config.architecture).copies)(&config).into_iter();
        let copies: Vec<(&str, TensorPlace)> =
            copies.filter_map(|(name, ours)| Some((ours, places.remove(name)?))).collect();
        if let Some((name, ours)) = twin(&config)
            && let Some(place) = places.remove(name)
        {
            places.insert(ours.to_owned(), place);
        }

        let place = || dir.display().to_string();
        let mut tensors = Vec::with_capacity(params.len());
        let mut missing = Vec::new();
        for param in params {
            let mut found = Vec::new();
            for (name, _) in parts_of(&config, &param) {
                match places.remove(&name) {
                    Some(place) => found.push(place),
                    None => missing.push(name),
                }
            }
            tensors.push(Tensor { param, parts: found, copies: Vec::new() });
        }
        ensure!(
            missing.is_empty(),
            "{}: {} missing: {}",
            place(),
            are(missing.len()),
            list(&missing)
        );
        let unknown: Vec<String> = places.into_values().map(|place| place.name).collect();
        ensure!(
            unknown.is_empty(),
            "{}: {} unknown in a {} of {} layers: {}",
            place(),
            are(unknown.len()),
            config.architecture,
            config.layers,
            list(&unknown)
        );
        for Tensor { param, parts, .. } in &tensors {
            let mut shape = param.shape.clone();
            for (TensorPlace { shard, name, tensor }, (_, rows)) in
                parts.iter().zip(parts_of(&config, param))
            {
                shape[0] = rows.len();
                ensure!(
                    tensor.shape == shape,
                    "{}: {name} has shape {:?}, but config.json makes it {shape:?}",
                    shard.path().display(),
                    tensor.shape,
                );
            }
        }
        let names = tensors.iter().map(|tensor| tensor.param.name.clone());
        let index: HashMap<String, usize> = names.zip(0..).collect();
        for (ours, copy) in copies {
            if let Some(tensor) = index.get(ours).and_then(|nth| tensors.get_mut(*nth)) {
                tensor.copies.push(copy);
            }
        }
        Ok(HfModel { dir: dir.to_path_buf(), config, dropout, ids, tensors, index })
    }

    /// Returns the sizes of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the tokens that begin, end and pad a text.
    pub fn ids(&self) -> &SpecialIds {
        &self.ids
    }

    /// Returns all parameters, in the order of [`ModelConfig::params`].
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.tensors.iter().map(|tensor| &tensor.param)
    }

    /// Reads the values of the parameter of this name, row-major.
    ///
    /// # Errors
    /// If it has none of this name, or its values cannot be read, are not finite, or differ from their copy.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let place = || self.dir.display().to_string();
        let nth = self.index.get(name).with_context(|| format!("{} has no {name}", place()))?;
        let Tensor { param, parts, copies } = &self.tensors[*nth];
        let read: Vec<_> = parts.iter().map(TensorPlace::values).collect::<Result<_>>()?;
        let values = read.concat();
        for copy in copies {
            let same = || Ok::<_, Error>(copy.is_of(parts, &copy.values()?, &values));
            ensure!(
                copy.tensor.shape == param.shape && same()?,
                "{}: {} differs from {name}, but config.json ties them: \
                 set `tie_word_embeddings` to false",
                place(),
                copy.name
            );
        }
        Ok(values)
    }
}

impl TensorPlace {
    fn values(&self) -> Result<Vec<f32>> {
        self.shard.values(&self.name, &self.tensor)
    }

    /// Returns true if values of this place equal those of others, within the precision of both types.
    fn is_of(&self, others: &[TensorPlace], ours: &[f32], theirs: &[f32]) -> bool {
        let types = others.iter().map(|other| other.tensor.dtype);
        if types.clone().all(|dtype| dtype == self.tensor.dtype) {
            return ours == theirs;
        }
        let [relative, least] = types.fold(precision(self.tensor.dtype), |[a, b], dtype| {
            let [c, d] = precision(dtype);
            [a.max(c), b.max(d)]
        });
        let mut both = ours.iter().zip(theirs);
        both.all(|(a, b)| (a - b).abs() <= (relative * b.abs()).max(least))
    }
}

/// Returns the tensors by our names.
fn places(
    architecture: Architecture,
    shards: Vec<ShardFile>,
) -> Result<BTreeMap<String, TensorPlace>> {
    let mut places: BTreeMap<String, TensorPlace> = BTreeMap::new();
    for shard in shards.into_iter().map(Arc::new) {
        for (name, tensor) in shard.tensors() {
            let Some(ours) = format(architecture).own_name(&name) else { continue };
            let (at, tensor) = (Arc::clone(&shard), tensor.clone());
            let place = TensorPlace { shard: at, name: name.clone(), tensor };
            if let Some(other) = places.insert(ours, place) {
                bail!(
                    "{name} in {} exists twice: as {} in {}",
                    shard.path().display(),
                    other.name,
                    other.shard.path().display()
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

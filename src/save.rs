//! Trained weights on disk.

use std::collections::BTreeMap;
use std::fs::{File, create_dir_all, remove_file, rename};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera_core::stage::Param;
use safetensors::tensor::{Dtype, TensorView, serialize};

use crate::training::io_fault;

/// The name of the file while it is written.
const PART: &str = "model.safetensors.part";

/// Makes `dir` and makes sure that files can be written there, so that a run does not learn at its end
/// that its weights have no place.
pub fn prepare(dir: &Path) -> Result<()> {
    let place = || format!("cannot save into {}", dir.display());
    let part = dir.join(PART);
    create_dir_all(dir).with_context(place)?;
    File::create(&part).with_context(place)?;
    remove_file(&part).with_context(place)
}

/// Writes `model.safetensors` into `dir`: f32 tensors keyed by name, in GPT-2's Hugging Face names and
/// layout. The file is complete or not there.
pub fn save(dir: &Path, weights: &[(Param, Vec<f32>)]) -> Result<PathBuf> {
    let path = dir.join("model.safetensors");
    let fault = |e: &dyn ToString| io_fault("weights", &path, e);
    create_dir_all(dir).map_err(|e| fault(&e))?;
    let bytes: Vec<Vec<u8>> = weights
        .iter()
        .map(|(_, values)| values.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let mut tensors = BTreeMap::new();
    for ((param, _), bytes) in weights.iter().zip(&bytes) {
        let view =
            TensorView::new(Dtype::F32, param.shape.clone(), bytes).map_err(|e| fault(&e))?;
        tensors.insert(param.name.clone(), view);
    }
    let content = serialize(tensors, None).map_err(|e| fault(&e))?;
    let part = dir.join(PART);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(&content)?;
        file.sync_all()?;
        rename(&part, &path)
    };
    if let Err(e) = write() {
        let _ = remove_file(&part); // the error that counts is the first
        return Err(fault(&e).into());
    }
    Ok(path)
}

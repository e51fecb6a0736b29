//! Trained weights on disk.

use std::collections::BTreeMap;
use std::fs::{File, create_dir_all, remove_file, rename};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
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
/// layout. The file is complete or not there; weights that are not finite are refused.
pub fn save(dir: &Path, weights: &[(Param, Vec<f32>)]) -> Result<PathBuf> {
    let path = dir.join("model.safetensors");
    let unsound = weights.iter().find(|(_, values)| values.iter().any(|v| !v.is_finite()));
    if let Some((param, _)) = unsound {
        let message = format!("{} is not finite: the weights are not saved", param.name);
        return Err(Fault::new(Class::NonFinite, Rank(0), message).into());
    }
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

#[cfg(test)]
mod tests {
    use chimera_core::stage::Init;
    use safetensors::SafeTensors;

    use super::*;

    fn param(name: &str) -> Param {
        let (name, shape) = (name.to_string(), vec![2]);
        Param { name, shape, init: Init::Zeros, decay: false, tied: false }
    }

    #[test]
    fn weights_read_back_and_unsound_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("weights");
        let weights = [(param("a"), vec![1.0, -0.5]), (param("b"), vec![f32::MIN_POSITIVE, 3.0])];
        let bytes = std::fs::read(save(&dir, &weights).unwrap()).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(
            read.tensor("a").unwrap().data(),
            [1.0f32.to_le_bytes(), (-0.5f32).to_le_bytes()].concat()
        );
        assert_eq!(read.tensor("b").unwrap().shape(), [2]);

        let unsound = [(param("c"), vec![1.0, f32::NAN])];
        let refusal = save(&folder.path().join("other"), &unsound).unwrap_err();
        assert_eq!(refusal.downcast_ref::<Fault>().map(|f| f.class), Some(Class::NonFinite));
        assert!(!folder.path().join("other").exists());
    }
}

//! Trained weights on disk, as Hugging Face keeps them.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, create_dir_all, remove_file, rename};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::model::ModelConfig;
use chimera_core::stage::Param;
use safetensors::tensor::{Dtype, TensorView, serialize};

use crate::files::io_fault;
use crate::hf::{CONFIG, DropoutRates, WEIGHTS, parts, to_hf, to_json, twin};

/// What turns text into the tokens of the model.
pub const TOKENIZER: &str = "tokenizer.json";
/// The name of a file while it is written.
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

/// Writes `model.safetensors` and then `config.json` into `dir`, as `transformers` saves a model in f32: other
/// programs read such a folder and go on training at the same rates of dropout, and [`hf::read`](crate::hf::read)
/// reads it. Each file is complete or not there;
/// weights that are not finite are refused.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn save(
    dir: &Path,
    model: &ModelConfig,
    dropout: &DropoutRates,
    weights: &[(Param, Vec<f32>)],
) -> Result<PathBuf> {
    let path = dir.join(WEIGHTS);
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
        let row = bytes.len() / param.shape.first().map_or(1, |rows| (*rows).max(1));
        for (name, rows) in parts(param) {
            let mut shape = param.shape.clone();
            shape[0] = rows.len();
            let bytes = &bytes[rows.start * row..rows.end * row];
            let view = TensorView::new(Dtype::F32, shape, bytes).map_err(|e| fault(&e))?;
            tensors.insert(to_hf(model.architecture, &name), view);
        }
    }
    if let Some((name, ours)) = twin(model)
        && let Some(view) = tensors.get(ours).cloned()
    {
        tensors.insert(name.to_owned(), view);
    }
    // Some versions of transformers refuse files that do not say so.
    let format = HashMap::from([("format".into(), "pt".into())]);
    let content = serialize(tensors, Some(format)).map_err(|e| fault(&e))?;
    publish(dir, WEIGHTS, &content)?;
    publish(dir, CONFIG, to_json(model, dropout).as_bytes())?;
    Ok(path)
}

/// Puts a copy of the `tokenizer.json` at `from` beside the model in `dir`, where others look for it.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn save_tokenizer(dir: &Path, from: &Path) -> Result<(), Fault> {
    let content = std::fs::read(from).map_err(|e| {
        let message = format!("cannot read tokenizer {}: {e}", from.display());
        Fault::new(Class::Io, Rank(0), message)
    })?;
    publish(dir, TOKENIZER, &content)
}

/// Writes the file `name` of `dir` whole, in the place of one that is there.
fn publish(dir: &Path, name: &str, content: &[u8]) -> Result<(), Fault> {
    let (part, path) = (dir.join(PART), dir.join(name));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(content)?;
        file.sync_all()?;
        rename(&part, &path)
    };
    write().map_err(|e| {
        let _ = remove_file(&part); // the error that counts is the first
        io_fault("model", &path, &e)
    })
}

#[cfg(test)]
mod tests {
    use chimera_core::model::Architecture;
    use chimera_core::stage::Init;
    use safetensors::SafeTensors;

    use super::*;

    const MODEL: ModelConfig = ModelConfig {
        architecture: Architecture::Gpt2,
        layers: 1,
        hidden: 2,
        heads: 1,
        context: 1,
        vocab: 1,
        tied: false,
    };

    fn param(name: &str) -> Param {
        let (name, shape) = (name.to_string(), vec![2]);
        Param { name, shape, init: Init::Zeros, decay: false, tied: false }
    }

    #[test]
    fn weights_read_back_and_unsound_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("weights");
        let values = [vec![1.0, -0.5], vec![f32::MIN_POSITIVE, 3.0]];
        let weights =
            [(param("a"), values[0].clone()), (param("lm_head.weight"), values[1].clone())];
        let bytes =
            std::fs::read(save(&dir, &MODEL, &DropoutRates::all(0.0), &weights).unwrap()).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(
            read.tensor("transformer.a").unwrap().data(),
            [1.0f32.to_le_bytes(), (-0.5f32).to_le_bytes()].concat()
        );
        assert_eq!(read.tensor("lm_head.weight").unwrap().shape(), [2]);
        let names = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["config.json", "model.safetensors"]);

        let unsound = [(param("c"), vec![1.0, f32::NAN])];
        let (other, rates) = (folder.path().join("other"), DropoutRates::all(0.0));
        let refusal = save(&other, &MODEL, &rates, &unsound).unwrap_err();
        assert_eq!(refusal.downcast_ref::<Fault>().map(|f| f.class), Some(Class::NonFinite));
        assert!(!other.exists());
    }
}

//! Trained weights on disk, as Hugging Face keeps them.

use std::collections::HashMap;
use std::fs::create_dir_all;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::fault::Fault;
use chimera_core::model::ModelConfig;
use chimera_core::stage::Param;
use serde::{Deserialize, Serialize};

use crate::SpecialIds;
use crate::checkpoint::MANIFEST;
use crate::files::disk::{Disk, remove_parts};
use crate::files::tensors::{self, NamedTensor};
use crate::files::{io_fault, prepare_dir, text_regular, write};
use crate::hf::{CONFIG, DropoutRates, GENERATION, WEIGHTS, parts, to_hf, to_json, twin};

/// The file beside a run's own model that holds the number of steps trained.
const STEPS: &str = "steps";
/// More digits than a number of steps has.
const MAX_DIGITS: u64 = 32;
/// The file in a folder of `--save` that names the run that saves there.
const CLAIM: &str = "saved-by.json";
/// Longer files are not our claims.
const MAX_CLAIM: u64 = 1 << 16;
/// The files that make a folder a run or a checkpoint.
const OF_RUNS: [&str; 2] = ["config.toml", MANIFEST];

/// A run's claim on the folder where it saves its model, so that no other run replaces it.
#[derive(Serialize, Deserialize)]
pub struct Claim {
    /// The folder of the run.
    pub run: PathBuf,
    /// The process that is to write the model.
    process: String,
    /// Whether an existing model in the folder is this run's.
    pub has_saved: bool,
}

impl Claim {
    /// Returns the claim on `dir`, if there is one.
    pub fn of(dir: &Path) -> Result<Option<Claim>> {
        let path = dir.join(CLAIM);
        let read = || -> Result<_> {
            let text = match text_regular(&path, MAX_CLAIM) {
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Ok(None);
                }
                text => text?.with_context(|| format!("it is longer than {MAX_CLAIM} bytes"))?,
            };
            Ok(Some(serde_json::from_str(&text)?))
        };
        read().with_context(|| {
            format!(
                "{} does not name the run that saves there: choose another folder, or remove it",
                path.display()
            )
        })
    }

    /// Claims `dir` for the run in the folder `run`, whose model this process writes.
    pub fn make(dir: &Path, run: &Path, has_saved: bool) -> Result<(), Fault> {
        let run = run.canonicalize().map_err(|e| io_fault("model of", run, &e))?;
        Claim { run, process: this_process().into(), has_saved }.write(dir)
    }

    fn write(&self, dir: &Path) -> Result<(), Fault> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| io_fault("model", &dir.join(CLAIM), &e))?;
        publish(dir, CLAIM, format!("{text}\n").as_bytes())
    }
}

/// Refuses to write a model into a folder that another process has claimed meanwhile, or that now holds another model.
fn check_claim(dir: &Path) -> Result<()> {
    let Some(claim) = Claim::of(dir)? else { return Ok(()) };
    let refuse = |why: String| io_fault("weights", &dir.join(WEIGHTS), &why);
    if claim.process != this_process() {
        return Err(refuse(format!("the run in {} saves there", claim.run.display())).into());
    }
    if holds_model(dir) && !claim.has_saved {
        return Err(refuse("a model has appeared there that this run did not save".into()).into());
    }
    // Written before the model, so that a run that is killed on the way knows its own files.
    Ok(Claim { has_saved: true, ..claim }.write(dir)?)
}

/// Returns a name of this process that no other has had.
fn this_process() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{} since {}", std::process::id(), now.as_nanos())
    })
}

/// Writes into `dir` the number of steps that its weights were trained for.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn write_steps(dir: &Path, n_steps: u64) -> Result<(), Fault> {
    publish(dir, STEPS, format!("{n_steps}\n").as_bytes())
}

/// Returns the number of steps of the weights that a run saved in `dir`; `None` if no file holds it.
pub fn saved_steps(dir: &Path) -> Option<u64> {
    text_regular(&dir.join(STEPS), MAX_DIGITS).ok()??.trim().parse().ok()
}

/// Makes `dir` and checks that files can be written there, so that a run does not find out at its end
/// that its weights cannot be saved. An existing model is replaced only by a run that `goes_on`. The
/// folder of a run or a checkpoint is refused, since a model there would be mistaken for its result.
pub fn prepare(dir: &Path, goes_on: bool) -> Result<()> {
    if let Some(name) = OF_RUNS.iter().find(|name| dir.join(name).exists()) {
        bail!(
            "{} is the folder of a run or a checkpoint, since it holds {name}: choose another folder",
            dir.display()
        );
    }
    ensure!(
        goes_on || !holds_model(dir),
        "{} holds a model already: choose another folder, or remove it",
        dir.display()
    );
    prepare_dir(dir).with_context(|| format!("cannot save into {}", dir.display()))
}

/// Removes partial files of a model in `dir` that killed processes have left. No other process may be writing one.
pub fn remove_half_written(dir: &Path) {
    remove_parts(dir, &[WEIGHTS, CONFIG, GENERATION, STEPS, CLAIM]);
}

/// Returns true if a model is in `dir`.
pub fn holds_model(dir: &Path) -> bool {
    [WEIGHTS, CONFIG].iter().any(|name| dir.join(name).is_file())
}

/// Writes `model.safetensors`, `generation_config.json` if the model came with one, and then `config.json`
/// into `dir`, as `transformers` saves a model in f32. Other programs read such a folder and go on training
/// with the same rates of dropout; [`hf::read`](crate::hf::read) reads it too. Each file is
/// complete or absent. Weights that are not finite are refused, and so is a folder where another run saves.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn save(
    dir: &Path,
    model: &ModelConfig,
    dropout: &DropoutRates,
    ids: &SpecialIds,
    weights: &[(Param, Vec<f32>)],
) -> Result<PathBuf> {
    let path = dir.join(WEIGHTS);
    create_dir_all(dir).map_err(|e| io_fault("weights", &path, &e))?;
    check_claim(dir)?;
    let mut tensors = Vec::new();
    for (param, values) in weights {
        let row = values.len() / param.shape.first().map_or(1, |rows| (*rows).max(1));
        for (name, rows) in parts(model, param) {
            let mut shape = param.shape.clone();
            shape[0] = rows.len();
            let values = &values[rows.start * row..rows.end * row];
            tensors.push(NamedTensor::new(to_hf(model.architecture, &name), shape, values));
        }
    }
    if let Some((name, ours)) = twin(model)
        && let Some(NamedTensor { shape, words, .. }) =
            tensors.iter().find(|tensor| tensor.name == ours)
    {
        tensors.push(NamedTensor::new(name.to_owned(), shape.clone(), words));
    }
    // Some versions of transformers refuse files without this entry.
    let format = HashMap::from([("format".into(), "pt".into())]);
    let written = tensors::write(&Disk::default(), &path, tensors, Some(format));
    written.map_err(|e| tensors::fault("weights", &path, &e, "the weights are not saved"))?;
    if let Some(generation) = ids.generation() {
        publish(dir, GENERATION, generation.as_bytes())?;
    }
    publish(dir, CONFIG, to_json(model, dropout, ids).as_bytes())?;
    Ok(path)
}

/// Writes the file `name` of `dir` whole, replacing an existing one.
fn publish(dir: &Path, name: &str, content: &[u8]) -> Result<(), Fault> {
    let path = dir.join(name);
    write(&path, content).map_err(|e| io_fault("model", &path, &e))
}

#[cfg(test)]
mod tests {
    use chimera_core::fault::Class;
    use chimera_core::model::Architecture;
    use chimera_core::stage::Init;
    use safetensors::SafeTensors;

    use super::*;

    const MODEL: ModelConfig = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 1,
        hidden: 2,
        heads: 1,
        context: 1,
        vocab: 1,
        tied: false,
        llama: None,
        end_of_text: None,
    };

    fn param(name: &str) -> Param {
        Param::new(name, [2], Init::Zeros)
    }

    #[test]
    fn weights_read_back_and_unsound_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("weights");
        let values = [vec![1.0, -0.5], vec![f32::MIN_POSITIVE, 3.0]];
        let weights =
            [(param("a"), values[0].clone()), (param("lm_head.weight"), values[1].clone())];
        let ids = SpecialIds::usual(&MODEL);
        let bytes =
            std::fs::read(save(&dir, &MODEL, &DropoutRates::all(0.0), &ids, &weights).unwrap())
                .unwrap();
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
        let refusal = save(&other, &MODEL, &rates, &ids, &unsound).unwrap_err();
        assert_eq!(refusal.downcast_ref::<Fault>().map(|f| f.class), Some(Class::NonFinite));
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    }
}

//! Saves the weights of a run to the folder in the settings, by default within the run's own
//! folder.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::checks::tokenizer_of;
use crate::cli::parts::terminal::progress::Say;
use crate::cli::parts::training::model;
use crate::cli::parts::training::model::refuse_other_tokenizer;
use crate::data::chat::copy_template;
use crate::data::tokenizer::write_tokenizer;
use crate::formats::adapter::{ADAPTER, save_adapter};
use crate::formats::hf::DropoutRates;
use crate::formats::save::{prepare, save, saved_steps, write_steps};
use crate::run::{Place, Run, Trained};
use crate::settings::MODEL;

/// Saves the trained weights. A run that was stopped only does so if its user named the folder: it
/// has a checkpoint, and may have little time.
pub(super) fn keep(run: &Run, trained: &Trained, folder: &Path, say: &Say) -> Result<()> {
    let config = run.config();
    let (named, n_steps) = (config.checkpoints.save.is_some(), trained.n_steps);
    let is_kept = n_steps == config.training.steps || named && trained.last.is_some();
    let Some(dir) = config.weights_dir(folder).filter(|_| is_kept) else { return Ok(()) };
    let own = tokenizer_of(run);
    // A tokenizer that a user has put there meanwhile is neither replaced nor taken for the
    // model's.
    let is_free = || {
        if named {
            refuse_other_tokenizer(&dir, own.as_deref(), "the data: choose another folder")
        } else {
            Ok(())
        }
    };
    let write = |dir: &Path| write(run, trained, own.as_deref(), dir);
    let path = is_free().and_then(|()| write(&dir)).map_err(|e| {
        let elsewhere = named.then(|| write_own(trained, folder, write));
        match elsewhere {
            Some(Ok(path)) => e.context(format!("the weights are in {}", path.display())),
            _ => e,
        }
    })?;
    tell(run, &dir, &path, n_steps, say)
}

/// Saves the weights in the checkpoint of a run that has no steps left, unless they were saved
/// before.
pub(super) fn keep_from_checkpoint(run: &Run, place: &Place, say: &Say) -> Result<()> {
    let (config, n_steps) = (run.config(), run.first_step());
    let dir = config.weights_dir(place.path());
    let (Some(dir), Some(checkpoint)) = (dir, run.begins_at()) else { return Ok(()) };
    // In a user's folder, the recorded number of steps may belong to another run.
    if config.checkpoints.save.is_none() && saved_steps(&dir) == Some(n_steps) {
        return Ok(());
    }
    place.prepare_kept(config, checkpoint)?;
    let path = model::load(Some(checkpoint))?.save(&dir)?;
    tell(run, &dir, &path, n_steps, say)
}

/// Writes the weights into the run's own folder, unless it has a model that was not saved by a run.
fn write_own(
    trained: &Trained,
    folder: &Path,
    write: impl Fn(&Path) -> Result<PathBuf>,
) -> Result<PathBuf> {
    let dir = folder.join(MODEL);
    prepare(&dir, saved_steps(&dir).is_some())?;
    let path = write(&dir)?;
    write_steps(&dir, trained.n_steps)?;
    Ok(path)
}

/// Writes the weights in the format of other programs, with their `tokenizer.json`.
fn write(run: &Run, trained: &Trained, tokenizer: Option<&[u8]>, dir: &Path) -> Result<PathBuf> {
    let dropout = DropoutRates::all(run.config().model.dropout);
    let (model, ids, config) = (run.model(), run.special_ids(), run.config());
    let path = match config.lora() {
        None => save(dir, model, &dropout, &ids, &trained.weights)?,
        Some(lora) => {
            let base = config.model.init.as_deref();
            save_adapter(&dir.join(ADAPTER), model, &lora, base, &trained.weights)?;
            save(dir, model, &dropout, &ids, &model.merged(&lora, trained.weights.clone()))?
        }
    };
    if let Some(content) = tokenizer {
        write_tokenizer(dir, content)?;
        if let Some(init) = &config.model.init {
            copy_template(init, dir)?;
        }
    }
    Ok(path)
}

/// Prints the path of the weights. In the run's own folder, also records the number of steps next
/// to them.
fn tell(run: &Run, dir: &Path, path: &Path, n_steps: u64, say: &Say) -> Result<()> {
    if run.config().checkpoints.save.is_none() {
        write_steps(dir, n_steps)?;
    }
    say.line(&format!("weights: {}", path.display()));
    Ok(())
}

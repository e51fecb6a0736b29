//! The weights that a run keeps where the settings say: by default in its own folder.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::checks::tokenizer_of;
use crate::cli::parts::terminal::progress::Say;
use crate::cli::parts::training::model;
use crate::cli::parts::training::model::refuse_other_tokenizer;
use crate::data::tokenizer::write_tokenizer;
use crate::formats::hf::DropoutRates;
use crate::formats::save::{prepare, save, saved_steps, write_steps};
use crate::run::{Place, Run, Trained};
use crate::settings::MODEL;

/// Keeps what was trained. A run that was stopped keeps it only in a folder that its user named: it has a checkpoint,
/// and may have little time.
pub(super) fn keep(run: &Run, trained: &Trained, folder: &Path, say: &Say) -> Result<()> {
    let config = run.config();
    let (named, n_steps) = (config.checkpoints.save.is_some(), trained.n_steps);
    let is_kept = n_steps == config.training.steps || named && trained.last.is_some();
    let Some(dir) = config.weights_dir(folder).filter(|_| is_kept) else { return Ok(()) };
    let own = tokenizer_of(run);
    // What a user has put there meanwhile is neither replaced nor taken for the model's.
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

/// Keeps what the checkpoint holds at which a run began that has no step left, unless it was kept before.
pub(super) fn keep_from_checkpoint(run: &Run, place: &Place, say: &Say) -> Result<()> {
    let (config, n_steps) = (run.config(), run.first_step());
    let dir = config.weights_dir(place.path());
    let (Some(dir), Some(checkpoint)) = (dir, run.begins_at()) else { return Ok(()) };
    // What a user's folder says of steps may be of another run.
    if config.checkpoints.save.is_none() && saved_steps(&dir) == Some(n_steps) {
        return Ok(());
    }
    place.prepare_kept(config, checkpoint)?;
    let path = model::load(Some(checkpoint))?.save(&dir)?;
    tell(run, &dir, &path, n_steps, say)
}

/// Writes the weights into the run's own folder, unless a model is there that no run saved.
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

/// Writes the weights as other programs read them, with the `tokenizer.json` that goes with them.
fn write(run: &Run, trained: &Trained, tokenizer: Option<&[u8]>, dir: &Path) -> Result<PathBuf> {
    let dropout = DropoutRates::all(run.config().model.dropout);
    let path = save(dir, run.model(), &dropout, &run.special_ids(), &trained.weights)?;
    if let Some(content) = tokenizer {
        write_tokenizer(dir, content)?;
    }
    Ok(path)
}

/// Says where the weights are, and in the run's own folder, beside them, after how many steps.
fn tell(run: &Run, dir: &Path, path: &Path, n_steps: u64, say: &Say) -> Result<()> {
    if run.config().checkpoints.save.is_none() {
        write_steps(dir, n_steps)?;
    }
    say.line(&format!("weights: {}", path.display()));
    Ok(())
}

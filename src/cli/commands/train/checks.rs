//! What a run is refused for before it has a folder, though its settings are sound.

use anyhow::{Result, ensure};

use crate::cli::parts::console::warn;
use crate::data::n_ignored;
use crate::data::tokenizer::{MAX_BYTES, TOKENIZER, Tokenizer};
use crate::formats::files::read_regular;
use crate::run::Run;

/// Refuses data that does not fit the model or the folder of its weights.
pub(super) fn check(run: &Run) -> Result<()> {
    check_initial_tokenizer(run)?;
    check_saved_tokenizer(run)?;
    check_targets(run)
}

/// Refuses ids of another tokenizer than that of the model to begin with, where both are known.
fn check_initial_tokenizer(run: &Run) -> Result<()> {
    let file = run.config().init.as_ref().map(|dir| dir.join(TOKENIZER));
    let (Some(file), Some(of_data)) = (file.filter(|file| file.exists()), run.corpus().tokenizer())
    else {
        return Ok(());
    };
    match Tokenizer::read(&file) {
        Ok(of_model) => Ok(of_model.check_data(of_data)?),
        Err(error) => {
            warn(&format!("whether the data has the tokens of the model is not known: {error}"));
            Ok(())
        }
    }
}

/// Refuses a folder for the weights whose `tokenizer.json` is not that of the data: it would be lost, or be taken for the
/// model's.
fn check_saved_tokenizer(run: &Run) -> Result<()> {
    let file = run.config().save.as_ref().map(|dir| dir.join(TOKENIZER));
    let Some(file) = file.filter(|file| file.symlink_metadata().is_ok()) else { return Ok(()) };
    let own = run.corpus().tokenizer().and_then(Tokenizer::content);
    let found = read_regular(&file, MAX_BYTES).ok().flatten();
    ensure!(
        own.is_some() && found.as_deref() == own,
        "{} is not the tokenizer of the data: choose another folder to --save into, or remove the file",
        file.display()
    );
    Ok(())
}

/// Refuses data of which nothing is to be predicted: the loss would be 0.
fn check_targets(run: &Run) -> Result<()> {
    let cause = match run.config().document_mask {
        true => "all are of prompts, or begin a document (document-mask)",
        false => "all are of prompts",
    };
    ensure!(
        run.corpus().has_targets()?,
        "no token of the data to train on is a target: {cause}: choose data with answers"
    );
    let targets = run.validation()?.target;
    ensure!(
        targets.len() > n_ignored(&targets),
        "no token of the samples to validate with is a target: {cause}: name other --validation-data, or prepare the texts \
         in another order, since the last tenth is kept to validate with"
    );
    Ok(())
}

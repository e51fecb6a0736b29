//! Checks before a run gets a folder, in addition to those of the settings.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::cli::parts::terminal::console::warn;
use crate::cli::parts::training::model::refuse_other_tokenizer;
use crate::data::n_ignored;
use crate::data::text_kind::doubt;
use crate::data::tokenizer::{TOKENIZER, Tokenizer, TokenizerError};
use crate::formats::hf::file_in;
use crate::run::Run;

/// Refuses data that does not fit the model or the folder for its weights.
pub(super) fn check(run: &Run) -> Result<()> {
    let data = &run.config().data;
    let files: BTreeSet<_> = data.files.iter().chain(&data.validation).collect();
    files.into_iter().filter_map(|path| doubt(path)).for_each(|doubt| warn(&doubt));
    let of_model = initial_tokenizer(run)?;
    match &of_model {
        Some(Ok(of_model)) => run.corpus().check_model(of_model)?,
        Some(Err(error)) => {
            warn(&format!("it is unknown whether the data has the tokens of the model: {error}"));
        }
        None => {}
    }
    check_saved_tokenizer(run, of_model.and_then(Result::ok).as_ref())?;
    check_targets(run)
}

/// Refuses a folder for the weights that has another `tokenizer.json`. A folder with a default name
/// is empty.
fn check_saved_tokenizer(run: &Run, of_model: Option<&Tokenizer>) -> Result<()> {
    let config = run.config();
    let (folder, whose) = match (&config.checkpoints.save, &config.output.out) {
        (Some(_), out) => (out, "the data: choose another folder to --save into"),
        (None, Some(_)) => (&config.output.out, "the data: choose another --out"),
        (None, None) => return Ok(()),
    };
    let dir = config.weights_dir(folder.as_deref().unwrap_or(Path::new("")));
    dir.map_or(Ok(()), |dir| refuse_other_tokenizer(&dir, content(run, of_model), whose))
}

/// Returns the `tokenizer.json` for the weights of a run, if there is one.
pub(super) fn tokenizer_of(run: &Run) -> Option<Vec<u8>> {
    let of_model = initial_tokenizer(run).ok().flatten().and_then(Result::ok);
    content(run, of_model.as_ref()).map(<[u8]>::to_vec)
}

/// Returns the `tokenizer.json` of the initial model if it has all ids of the data, since it may
/// have more. Otherwise returns that of the data as it was at the start, if there is one.
fn content<'r>(run: &'r Run, of_model: Option<&'r Tokenizer>) -> Option<&'r [u8]> {
    let of_data = run.corpus().tokenizer();
    let of_model = of_model.filter(|own| of_data.is_none_or(|data| data.vocab() <= own.vocab()));
    of_model.or(of_data)?.content()
}

/// Reads the `tokenizer.json` of the initial model, if there is one; refuses a link out of the
/// model's folder.
fn initial_tokenizer(run: &Run) -> Result<Option<Result<Tokenizer, TokenizerError>>> {
    let Some(dir) = &run.config().model.init else { return Ok(None) };
    Ok(file_in(dir, TOKENIZER)?.map(|file| Tokenizer::read(&file)))
}

/// Refuses data without targets: the loss would be 0.
fn check_targets(run: &Run) -> Result<()> {
    let cause = if run.config().data.document_mask {
        "all are of prompts, or begin a document (document-mask)"
    } else {
        "all are of prompts"
    };
    ensure!(
        run.corpus().has_targets()?,
        "no token of the data to train on is a target: {cause}: choose data with answers"
    );
    if !run.corpus().validation_has_ignored() {
        return Ok(());
    }
    let targets = run.validation()?.target;
    ensure!(
        targets.len() > n_ignored(&targets),
        "no token of the samples to validate with is a target: {cause}: name other --validation-data, or prepare the texts \
         in another order, since the last tenth is kept to validate with"
    );
    Ok(())
}

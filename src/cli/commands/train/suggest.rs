//! Commands that `train` names at its end.

use std::path::Path;

use chimera_core::model::Objective;

use crate::cli::parts::console::quoted;
use crate::run::{Run, SETTINGS};
use crate::settings::Config;

/// The command that goes on with the run in `folder`.
pub(super) fn to_resume(config: &Config, folder: &Path) -> String {
    let settings = quoted(folder.join(SETTINGS).display());
    let out = match &config.out {
        Some(_) => String::new(), // the settings name it
        None => format!(" --out {}", quoted(folder.display())),
    };
    format!("chimera train --config {settings}{out} --resume auto")
}

/// The command that tries the model in `dir`.
pub(super) fn to_try(run: &Run, dir: &Path) -> String {
    let (dir, data) = (quoted(dir.display()), &run.config().data);
    let prompt = match run.model().objective() {
        Objective::NextToken if run.corpus().tokenizer().is_none() => "0 1 2",
        Objective::NextToken if data.is_empty() => "In the beginning",
        Objective::NextToken => "The",
        Objective::MaskedTokens => {
            let data = data.first().map_or("FILE".into(), |file| quoted(file.display()));
            return format!("chimera eval --model {dir} --data {data}");
        }
    };
    format!("chimera generate --model {dir} --prompt \"{prompt}\"")
}

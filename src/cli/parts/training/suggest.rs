//! Commands that a run and its report suggest.

use std::path::Path;

use chimera_core::model::Objective;

use crate::cli::parts::training::own_command::own_command;
use crate::run::{Run, SETTINGS};
use crate::settings::quoted;

/// Returns the command that resumes the run in `folder`; `has_out` is whether its settings name the
/// folder.
pub(crate) fn to_resume(has_out: bool, folder: &Path) -> String {
    let settings = quoted(folder.join(SETTINGS).display());
    let out = if has_out {
        String::new()
    } else {
        // the settings name it
        format!(" --out {}", quoted(folder.display()))
    };
    format!("chimera {} --config {settings}{out} --resume auto", own_command())
}

/// Returns the command that trains as the run in `folder` did, with a change of `options`; `has_out`
/// is whether its settings name the folder.
pub(crate) fn to_change(has_out: bool, folder: &Path, options: &str) -> String {
    let settings = quoted(folder.join(SETTINGS).display());
    let out = if has_out { " --out NEW" } else { "" };
    format!("chimera train --config {settings}{out} {options}")
}

/// Returns the command that tries the model in `dir`.
pub(crate) fn to_try(run: &Run, dir: &Path) -> String {
    let (dir, data) = (quoted(dir.display()), &run.config().data.files);
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

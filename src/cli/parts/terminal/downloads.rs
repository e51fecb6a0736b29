//! The terminal's display of models being fetched from a hub.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use chimera_core::notation::size;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::parts::terminal::console::{tell, warn};
use crate::data::tokenizer::TOKENIZER;
use crate::formats::hub::{Event, Part, Source, folder_of, named, report_to};

/// Draws every download of this process: a bar on a terminal, and a line for each file.
pub(crate) fn draw() {
    report_to(show);
}

fn show(event: &Event<'_>) {
    static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);
    let mut bar = BAR.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        Event::Begins { from: Source { name, endpoint }, commit } => {
            let commit = &commit[..8];
            tell(format_args!("fetches {} at {endpoint} (commit {commit})", name.repository()));
        }
        Event::Receives { file, bytes, of } => {
            bar.get_or_insert_with(|| bar_of(file, *of)).set_position(*bytes);
        }
        Event::Ends { file, bytes } => {
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
            tell(format_args!("fetched {file}, {}", size(*bytes as f64)));
        }
        Event::Stale { from, reason } => warn(&format!(
            "{from} does not answer ({reason}): the model in the cache is taken, which may be older"
        )),
    }
}

/// Returns the bar of a file, which is hidden where there is no terminal.
fn bar_of(file: &str, bytes: Option<u64>) -> ProgressBar {
    let bar = bytes.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.with_message(file.to_string())
}

/// Returns the file of a tokenizer that is named by its model on a hub. Other names stay as they are.
pub(crate) fn tokenizer_of(name: String) -> Result<String> {
    if named(Path::new(&name)).is_none() || name.ends_with(".json") {
        return Ok(name);
    }
    let file = folder_of(Path::new(&name), Part::Texts)?.join(TOKENIZER);
    ensure!(file.exists(), "{name}: this model has no {TOKENIZER}: name another tokenizer");
    Ok(file.display().to_string())
}

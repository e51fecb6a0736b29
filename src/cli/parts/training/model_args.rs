//! The options that name a trained model, perhaps with an adapter, and its devices.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::model::{Loaded, load};
use crate::cli::parts::terminal::console::warn;
use crate::formats::adapter::ADAPTER;
use crate::formats::hf::CONFIG;
use crate::formats::hub;
use crate::formats::peft::PeftAdapter;

/// The model of a command.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// Folder of the model: a run, a checkpoint, or a folder of `train --save` or of Hugging Face (config.json,
    /// model.safetensors); or its name on a hub (org/name) [default: the newest run in `runs` with a model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Folder of a peft adapter to merge into the model; without --model, into the model that it
    /// was trained for
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
}

impl ModelArgs {
    /// Reads the model, with its adapter merged into it.
    pub(crate) fn load(&self) -> Result<Loaded> {
        let named = self.model.as_deref();
        let is_adapter = |dir: &Path| PeftAdapter::is_in(dir) && !dir.join(CONFIG).exists();
        let (dir, adapter) = match (named, self.adapter.as_deref()) {
            (Some(dir), None) if is_adapter(dir) => (None, Some(dir)),
            named => named,
        };
        let Some(adapter) = adapter else { return load(dir) };
        let peft = PeftAdapter::open(adapter)?;
        let base = dir
            .or(peft.base().map(Path::new))
            .filter(|base| base.exists() || hub::named(base).is_some());
        let base = base.with_context(|| match peft.base() {
            Some(base) => format!(
                "the adapter in {} was trained for {base}, which is not a folder here: name the model by --model",
                adapter.display()
            ),
            None => format!(
                "the adapter in {} does not name its model: name it by --model",
                adapter.display()
            ),
        })?;
        let mut loaded = load(Some(base))?;
        let merged = loaded.place.join(ADAPTER);
        if PeftAdapter::is_in(&merged) {
            let [model, merged] = [&loaded.place, &merged].map(|path| path.display());
            warn(&format!("the model in {model} already has the adapter in {merged} merged"));
        }
        loaded.adapt(&peft, base)?;
        Ok(loaded)
    }
}

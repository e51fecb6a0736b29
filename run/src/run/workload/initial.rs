//! The weights of a model that a run begins with. They stay on disk: each rank reads those of its stages.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use chimera_core::model::{Lora, ModelConfig};
use chimera_core::stage::{Init, Param, initial};
use chimera_formats::SpecialIds;
use chimera_formats::checkpoint::bytes;
use chimera_formats::hf::HfModel;
use chimera_formats::hub::complete;
use chimera_formats::peft::PeftAdapter;

/// A model to begin with, which has been read once as a whole.
pub struct Initial {
    dir: String,
    source: HfModel,
    adapter: Option<PeftAdapter>,
    /// BLAKE3 of the values, by name.
    hashes: BTreeMap<String, blake3::Hash>,
}

impl Initial {
    /// Opens the model in `dir`, which must be of these sizes, and the adapter in another folder, if
    /// one is given.
    ///
    /// # Errors
    /// If any of it cannot be used.
    pub(crate) fn open(dir: &Path, adapter: Option<&Path>, model: &ModelConfig) -> Result<Initial> {
        complete(dir)?;
        let source = HfModel::open(dir)?;
        let dir = dir.display().to_string();
        // The text marks the end of documents, not the model.
        let model = ModelConfig { end_of_text: None, ..model.clone() };
        let mut found = source.config().clone();
        if found.has_open_context() {
            found.context = model.context;
        }
        ensure!(found == model, "{}", changed(&dir));
        let hash = |param: &Param| {
            let values = source.values(&param.name)?;
            Ok((param.name.clone(), blake3::hash(&bytes(&values))))
        };
        let mut hashes: BTreeMap<_, _> = source.params().map(hash).collect::<Result<_>>()?;
        let adapter = adapter.map(PeftAdapter::open).transpose()?;
        if let Some(adapter) = &adapter {
            for param in adapter.params(&model)? {
                let values = adapter.values(model.architecture, &param)?;
                hashes.insert(param.name, blake3::hash(&bytes(&values)));
            }
        }
        Ok(Initial { dir, source, adapter, hashes })
    }

    /// Returns the tokens that begin, end and pad a text, according to the model.
    pub(crate) fn ids(&self) -> &SpecialIds {
        self.source.ids()
    }

    /// Returns BLAKE3 of all values.
    pub(crate) fn hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (name, hash) in &self.hashes {
            hasher.update(name.as_bytes()).update(hash.as_bytes());
        }
        hasher.finalize()
    }

    /// Returns the values of a parameter, row-major. Without an adapter to begin with, adapters begin
    /// with values drawn from `seed`.
    ///
    /// # Errors
    /// If they can no longer be read, or have changed.
    pub(crate) fn values(&self, param: &Param, seed: u64) -> Result<Vec<f32>> {
        let is_adapter = Lora::is_adapter(&param.name);
        if let Init::Norms(norms) = &param.init
            && !(is_adapter && self.adapter.is_some())
        {
            return Ok(norms.of(self.values(&norms.matrix, seed)?));
        }
        let values = match &self.adapter {
            None if is_adapter => return Ok(initial(param, seed)),
            Some(adapter) if is_adapter => {
                adapter.values(self.source.config().architecture, param)?
            }
            _ => self.source.values(&param.name)?,
        };
        let hash = blake3::hash(&bytes(&values));
        let is_same = self.hashes.get(&param.name) == Some(&hash);
        ensure!(is_same, "{}", changed(&self.dir));
        Ok(values)
    }
}

fn changed(dir: &str) -> String {
    format!("{dir} changed while it was read")
}

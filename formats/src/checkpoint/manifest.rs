//! The manifest of a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use chimera_core::engine::{Counts, WindowHistory};
use chimera_core::interchange::from_json;
use chimera_core::model::{Lora, ModelConfig};
use chimera_core::stage::ParamPatterns;
use chimera_settings::llama_of;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{Unusable, has_manifest, no_manifest};
use crate::SpecialIds;
use crate::files::text_regular;

/// The file that makes a folder a checkpoint, written last.
pub const MANIFEST: &str = "manifest.json";
/// The format that this program writes, and the newest it reads.
pub const FORMAT: u32 = 1;
/// Longer manifests are refused before they are read.
const MAX_BYTES: u64 = 1 << 24;

/// The identity of data: the number of its ids, and their hash.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Digest {
    /// Number of ids.
    pub tokens: u64,
    /// BLAKE3 of the ids, as little-endian u32.
    pub blake3: String,
    /// BLAKE3 of the flags that say which of them are targets, if not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<String>,
}

/// The progress of a training, and the files that hold its tensors.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// The program that wrote it.
    pub written_by: String,
    /// Number of steps that were trained, which is the number of the next one.
    pub step: u64,
    /// Updates of every weight, which the optimizer's bias correction counts.
    pub updates: u64,
    /// Steps whose gradient was discarded; missing in files of earlier versions.
    #[serde(default)]
    pub skipped: u64,
    /// History of the windows without a border; missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "is_none_wrong")]
    pub windows: WindowHistory,
    /// Samples of a step.
    pub samples_per_step: u64,
    /// BLAKE3 of the samples of the next step, or of `samples_step`. It identifies the position in the data.
    pub next_samples: String,
    /// The step of those samples, if it is not the next one: data need not have samples after the
    /// last step of a training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_step: Option<u64>,
    /// The identity of the data; missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Digest>,
    /// All settings, as TOML values.
    pub settings: BTreeMap<String, String>,
    /// Suffixes of the optimizer's tensors after the names of the model's; by default first and
    /// second moments.
    #[serde(default = "moments", skip_serializing_if = "are_moments")]
    pub optimizer_state: Vec<String>,
    /// The tokens that begin, end and pad a text, if the training began with a model that names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special_ids: Option<SpecialIds>,
    /// The token at the end of each document of the data, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_text: Option<u32>,
    /// The schedule that a search found, if one did, as JSON: another search may find another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timetable: Option<String>,
    /// The files of tensors.
    pub shards: Vec<Shard>,
}

/// A file of tensors.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Shard {
    /// Name of the file, within the folder.
    pub file: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// BLAKE3 of its content.
    pub blake3: String,
}

impl Manifest {
    /// Returns the counters of the training.
    pub fn counts(&self) -> Counts {
        Counts { updates: self.updates, skipped: self.skipped, windows: self.windows }
    }

    /// Returns a setting, as TOML.
    pub fn setting(&self, key: &str) -> Result<&str> {
        self.settings
            .get(key)
            .map(String::as_str)
            .with_context(|| format!("its settings lack {key}"))
    }

    /// Returns a setting's value.
    pub fn value(&self, key: &str) -> Result<Value> {
        let table: Table = format!("value = {}", self.setting(key)?).parse()?;
        Ok(table["value"].clone())
    }

    /// Returns the model that is trained, and the rate of dropout.
    pub fn model(&self) -> Result<(ModelConfig, f64)> {
        let size = |key| Ok::<_, anyhow::Error>(self.setting(key)?.parse::<usize>()?);
        // Files of versions that had only GPT-2 and no dropout lack these settings.
        let architecture = self.settings.get("model").map_or("gpt2", |name| name.trim_matches('"'));
        let dropout = self.settings.get("dropout").map_or(Ok(0.0), |rate| rate.parse())?;
        let mut model = ModelConfig {
            architecture: architecture.parse().map_err(anyhow::Error::msg)?,
            layers: size("layers")?,
            hidden: size("hidden")?,
            heads: size("heads")?,
            context: size("context")?,
            vocab: size("vocab")?,
            tied: self.setting("tied")? == "true",
            llama: None,
            end_of_text: None,
        };
        model.llama = llama_of(&model, |key| self.value(key))?;
        model.validate()?;
        Ok((model, dropout))
    }

    /// Returns the adapters that are trained, if there are any.
    pub fn lora(&self) -> Result<Option<Lora>> {
        if !self.settings.contains_key("lora") {
            return Ok(None);
        }
        let rank = self.setting("lora")?.parse()?;
        let alpha = self.setting("lora-alpha").map_or(Ok(rank), str::parse)?;
        let targets = match self.value("lora-targets") {
            Ok(Value::String(text)) => text.parse().map_err(anyhow::Error::msg)?,
            _ => ParamPatterns::default(),
        };
        let dropout = self.settings.get("lora-dropout").map_or(Ok(0.0), |rate| rate.parse())?;
        let has_magnitudes = self.settings.get("dora").is_some_and(|is_on| is_on == "true");
        Ok(Some(Lora { rank, alpha, targets, dropout, has_magnitudes }))
    }

    /// Formats the manifest as text whose second line holds the hash of everything after it.
    pub(super) fn to_text(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(self)?;
        let rest = text.strip_prefix("{\n").unwrap_or(&text);
        Ok(format!("{HEAD}{}{NECK}{rest}\n", blake3::hash(format!("{rest}\n").as_bytes())))
    }

    /// Reads and checks the manifest of the checkpoint in `folder`.
    pub fn read(folder: &Path) -> Result<Manifest, Unusable> {
        let path = folder.join(MANIFEST);
        if !has_manifest(folder).map_err(|e| Unusable::of_io(&path, &e))? {
            return Err(Unusable::new(folder, no_manifest(folder)));
        }
        let unusable = |reason: String| Unusable::new(&path, reason);
        let text = text_regular(&path, MAX_BYTES).map_err(|e| Unusable::of_io(&path, &e))?;
        let text = text.ok_or_else(|| unusable(format!("it is longer than {MAX_BYTES} bytes")))?;
        let manifest = Manifest::parse(&path, &text)?;
        for shard in &manifest.shards {
            let is_plain = Path::new(&shard.file).file_name() == Some(shard.file.as_ref());
            if !is_plain || shard.file.contains('\\') {
                return Err(unusable(format!("`{}` is not a plain file name", shard.file)));
            }
        }
        Ok(manifest)
    }

    fn parse(path: &Path, text: &str) -> Result<Manifest, Unusable> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = |reason: &str| Unusable::new(path, reason);
        let unparsed = |e: serde_json::Error| damaged(&format!("it cannot be read: {e}"));
        let Version { format } = serde_json::from_str(text).map_err(unparsed)?;
        let sealed = text.strip_prefix(HEAD).and_then(|text| text.split_once(NECK));
        // A damaged file may show another format number, while a file of a later format may begin in another way.
        if sealed.is_some_and(|(hash, rest)| blake3::hash(rest.as_bytes()).to_string() != hash) {
            return Err(damaged("its content is not what was written: the hash differs"));
        }
        if format > FORMAT {
            let reason = format!(
                "it has format {format}, and this program reads up to {FORMAT}: use the version of \
                 chimera that wrote it, or a newer one"
            );
            return Err(Unusable::unread(path, reason));
        }
        sealed.ok_or_else(|| damaged("it does not begin with its hash"))?;
        let manifest: Manifest = serde_json::from_str(text).map_err(unparsed)?;
        if let Some(timetable) = &manifest.timetable {
            let unread = |e| damaged(&format!("its timetable cannot be read: {e}"));
            from_json(timetable.as_bytes()).map_err(unread)?;
        }
        Ok(manifest)
    }
}

/// Returns the optimizer state of most checkpoints.
pub fn moments() -> Vec<String> {
    ["m", "v"].map(String::from).into()
}

fn are_moments(state: &[String]) -> bool {
    state == moments()
}

/// Returns true if no window of the training was trained again.
fn is_none_wrong(windows: &WindowHistory) -> bool {
    *windows == WindowHistory::default()
}

const HEAD: &str = "{\n  \"blake3\": \"";
const NECK: &str = "\",\n";

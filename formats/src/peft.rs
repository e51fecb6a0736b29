//! Reading of adapters in the files of peft.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chimera_core::model::{Architecture, Cut, Lora, ModelConfig, Tuning};
use chimera_core::stage::{Param, ParamPatterns};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, PREFIX};
use crate::files::read_regular;
use crate::hf::{ShardFile, file_in, to_hf};

/// Larger settings are refused before they are read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Settings that other adapters have, with a value that is as good as none.
const UNUSED: [(&str, &[&str]); 11] = [
    ("use_dora", &["false"]),
    ("use_rslora", &["false"]),
    ("bias", &["\"none\""]),
    ("modules_to_save", &["[]"]),
    ("rank_pattern", &["{}"]),
    ("alpha_pattern", &["{}"]),
    ("layers_to_transform", &["[]"]),
    ("exclude_modules", &["[]"]),
    ("target_parameters", &["[]"]),
    ("layer_replication", &["[]"]),
    ("lora_bias", &["false"]),
];

/// The settings of an adapter.
#[derive(Deserialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    base_model_name_or_path: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// An adapter on disk. None of its values are held.
pub struct PeftAdapter {
    file: ShardFile,
    lora: Lora,
    base: Option<String>,
}

impl PeftAdapter {
    /// Returns true if the folder `dir` has an adapter.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(ADAPTER_CONFIG).exists()
    }

    /// Reads the settings and the header of the adapter in the folder `dir`.
    ///
    /// # Errors
    /// If there is none, or one that is not computed here; the error names the file and the setting.
    pub fn open(dir: &Path) -> Result<PeftAdapter> {
        let Some(path) = file_in(dir, ADAPTER_CONFIG)? else {
            bail!(
                "{} has no {ADAPTER_CONFIG}: name the folder of an adapter of peft",
                dir.display()
            )
        };
        let config = config(&path).with_context(|| path.display().to_string())?;
        let Some(weights) = file_in(dir, ADAPTER_WEIGHTS)? else {
            bail!("{} has no {ADAPTER_WEIGHTS}; pickle files (.bin) are never read", dir.display())
        };
        let file = ShardFile::open(&weights)?;
        let names: Vec<String> = file.tensors().map(|(name, _)| name).collect();
        let layers = names.iter().map(|name| layer_of(name));
        let layers = layers.collect::<Result<BTreeSet<_>>>();
        let layers = layers.with_context(|| weights.display().to_string())?;
        ensure!(!layers.is_empty(), "{} has no tensors", weights.display());
        let targets = layers.into_iter().collect::<Vec<_>>().join("; ");
        let targets: ParamPatterns = targets.parse().map_err(anyhow::Error::msg)?;
        // Whole, as `config` has checked.
        let alpha = config.lora_alpha as usize;
        let lora = Lora { rank: config.r, alpha, targets };
        Ok(PeftAdapter { file, lora, base: config.base_model_name_or_path })
    }

    /// Returns its rank, scale and layers.
    pub fn lora(&self) -> &Lora {
        &self.lora
    }

    /// Returns the folder or the name of the model that it was trained for.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Returns the adapter's parameters in a model of these sizes.
    ///
    /// # Errors
    /// If the model has other layers or sizes than the one that it was trained for.
    pub fn params(&self, model: &ModelConfig) -> Result<Vec<Param>> {
        ensure!(
            model.is_causal(),
            "{}: a {} has no adapters here, only models that predict the next token",
            self.path().display(),
            model.architecture
        );
        let tuning = Tuning { lora: Some(self.lora.clone()), ..Tuning::default() };
        let mut params = model.params(&Cut { tuning, ..Cut::whole(model) });
        params.retain(|param| Lora::is_adapter(&param.name));
        for param in &params {
            self.check(model.architecture, param)?;
        }
        let ours: BTreeSet<String> =
            params.iter().map(|param| name_of(model.architecture, param)).collect();
        let unknown = self.file.tensors().map(|(name, _)| name).find(|name| !ours.contains(name));
        match unknown {
            None => Ok(params),
            Some(name) => bail!(
                "{}: {name} belongs to no linear layer in the blocks of a {} of {} layers: name the model \
                 that the adapter was trained for",
                self.path().display(),
                model.architecture,
                model.layers
            ),
        }
    }

    /// Reads the values of a parameter, row-major.
    ///
    /// # Errors
    /// If it is missing, has another shape, or its values cannot be read or are not finite.
    pub fn values(&self, architecture: Architecture, param: &Param) -> Result<Vec<f32>> {
        self.check(architecture, param)?;
        let name = name_of(architecture, param);
        let tensor = self.file.tensor(&name).with_context(|| format!("no {name}"))?;
        self.file.values(&name, tensor)
    }

    /// Checks that the file has a parameter, of its shape.
    fn check(&self, architecture: Architecture, param: &Param) -> Result<()> {
        let name = name_of(architecture, param);
        let Some(tensor) = self.file.tensor(&name) else {
            bail!("{} has no {name}: an adapter here is in every block", self.path().display())
        };
        ensure!(
            tensor.shape == param.shape,
            "{}: {name} has shape {:?}, but the model and {ADAPTER_CONFIG} make it {:?}",
            self.path().display(),
            tensor.shape,
            param.shape
        );
        Ok(())
    }

    /// Returns the file of its matrices.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

/// Reads the settings, and refuses those that change what an adapter computes.
fn config(path: &Path) -> Result<Config> {
    let text = read_regular(path, MAX_CONFIG_BYTES).context("cannot read it")?;
    let text = text.with_context(|| format!("larger than {MAX_CONFIG_BYTES} bytes"))?;
    let config: Config = serde_json::from_slice(&text)?;
    let kind = &config.peft_type;
    ensure!(kind == "LORA", "`peft_type` is {kind}: only LORA is computed here");
    ensure!((1..=1 << 16).contains(&config.r), "`r` is {}: it must be 1 to 65536", config.r);
    let alpha = config.lora_alpha;
    ensure!(
        alpha.fract() == 0.0 && (1.0..=f64::from(1 << 20)).contains(&alpha),
        "`lora_alpha` is {alpha}: it must be a whole number from 1 to 1048576"
    );
    for (key, unused) in UNUSED {
        let value = config.others.get(key).filter(|value| !value.is_null());
        if let Some(value) = value.map(Value::to_string)
            && !unused.contains(&value.as_str())
        {
            bail!("`{key}` is {value}: such adapters are not computed here");
        }
    }
    Ok(config)
}

/// Returns the name of a parameter in peft's files.
fn name_of(architecture: Architecture, param: &Param) -> String {
    format!("{PREFIX}{}", to_hf(architecture, &param.name))
}

/// Returns the layer within its block, such as `self_attn.q_proj`, that a matrix of a file belongs
/// to.
fn layer_of(name: &str) -> Result<String> {
    let unknown = || format!("{name} is not a matrix of LoRA in a block");
    let path = name.strip_prefix(PREFIX).with_context(unknown)?;
    let (path, matrix) = path.split_once(".lora_").with_context(unknown)?;
    ensure!(matches!(matrix, "A.weight" | "B.weight"), unknown());
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = path.split('.').collect();
    let block = parts.iter().position(|part| is_number(part)).with_context(unknown)?;
    ensure!(block + 1 < parts.len(), unknown());
    Ok(parts[block + 1..].join("."))
}

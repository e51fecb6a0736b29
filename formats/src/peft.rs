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
use crate::hub::named;

/// Larger settings are refused before they are read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Settings that change nothing in what an adapter computes: what it was trained for and how, or
/// what the names and sizes of its matrices say too.
const WITHOUT_EFFECT: [&str; 14] = [
    "auto_mapping",
    "ensure_weight_tying",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "megatron_core",
    "parent_library",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];
/// Values of `init_lora_weights` that leave the weights of the model as they are.
const INITS: [&str; 3] = ["eva", "gaussian", "orthogonal"];

/// The settings of an adapter.
#[derive(Deserialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    lora_dropout: Option<f64>,
    use_dora: Option<bool>,
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
        let has_magnitudes = config.use_dora == Some(true);
        let layers = names.iter().map(|name| layer_of(name, has_magnitudes));
        let layers = layers.collect::<Result<BTreeSet<_>>>();
        let layers = layers.with_context(|| weights.display().to_string())?;
        ensure!(!layers.is_empty(), "{} has no tensors", weights.display());
        let targets = layers.into_iter().collect::<Vec<_>>().join("; ");
        let targets: ParamPatterns = targets.parse().map_err(anyhow::Error::msg)?;
        // Whole, as `config` has checked.
        let alpha = config.lora_alpha as usize;
        let dropout = config.lora_dropout.unwrap_or(0.0);
        let lora = Lora { rank: config.r, alpha, targets, dropout, has_magnitudes };
        let base = config.base_model_name_or_path.map(|base| {
            let revision = config.others.get("revision").and_then(Value::as_str);
            let pinned = revision.map(|revision| format!("{base}@{revision}"));
            pinned
                .filter(|pinned| named(Path::new(pinned)).is_some() && !Path::new(&base).exists())
                .unwrap_or(base)
        });
        Ok(PeftAdapter { file, lora, base })
    }

    /// Returns the settings of the adapter.
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
    let rate = config.lora_dropout.unwrap_or(0.0);
    ensure!((0.0..=0.999).contains(&rate), "`lora_dropout` is {rate}: it must be 0 to 0.999");
    if let Some((key, value)) = config.others.iter().find(|(key, value)| !is_usual(key, value)) {
        bail!("`{key}` is {value}: such adapters are not computed here");
    }
    Ok(config)
}

/// Returns true if an adapter with this setting is computed as one without it. A setting that is not
/// known must be off.
fn is_usual(key: &str, value: &Value) -> bool {
    match value {
        _ if WITHOUT_EFFECT.contains(&key) => true,
        Value::Null => true,
        Value::Bool(is_on) => !is_on || key == "init_lora_weights",
        Value::String(text) => match key {
            "init_lora_weights" => INITS.contains(&text.as_str()),
            "bias" => text == "none",
            _ => text.is_empty(),
        },
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        Value::Number(_) => false,
    }
}

/// Returns the name of a parameter in peft's files.
fn name_of(architecture: Architecture, param: &Param) -> String {
    format!("{PREFIX}{}", to_hf(architecture, &param.name))
}

/// Returns the layer within its block, such as `self_attn.q_proj`, that a tensor of a file belongs
/// to.
fn layer_of(name: &str, has_magnitudes: bool) -> Result<String> {
    let what = if has_magnitudes { "LoRA with `use_dora`" } else { "LoRA" };
    let unknown = || format!("{name} is not a tensor of {what} in a block");
    let path = name.strip_prefix(PREFIX).with_context(unknown)?;
    let (path, tensor) = path.split_once(".lora_").with_context(unknown)?;
    let is_known = match tensor {
        "A.weight" | "B.weight" => true,
        "magnitude_vector" => has_magnitudes,
        _ => false,
    };
    ensure!(is_known, unknown());
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = path.split('.').collect();
    let block = parts.iter().position(|part| is_number(part)).with_context(unknown)?;
    ensure!(block + 1 < parts.len(), unknown());
    Ok(parts[block + 1..].join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that peft 0.21 writes for a `LoraConfig` with a rank, a scale and layers.
    const PLAIN: &str = r#"
        {
        "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
        "auto_mapping": {"base_model_class": "M", "parent_library": "__main__"},
        "base_model_name_or_path": null, "bias": "none", "corda_config": null,
        "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
        "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
        "kasa_config": null, "layer_replication": null, "layers_pattern": null,
        "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 4, "lora_bias": false,
        "lora_dropout": 0.0, "lora_ga_config": null, "megatron_config": null,
        "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
        "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 2,
        "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"],
        "target_parameters": null, "task_type": null, "trainable_token_indices": null,
        "use_bdlora": null, "use_dora": false, "use_qalora": false, "use_rslora": false,
        "velora_config": null
        }
    "#;

    /// Reads the plain settings, with these words replaced.
    fn read(from: &str, to: &str) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ADAPTER_CONFIG);
        assert!(PLAIN.contains(from), "{from}");
        std::fs::write(&path, PLAIN.replace(from, to)).unwrap();
        config(&path)
    }

    #[test]
    fn plain_settings_are_read() {
        let config = read("", "").unwrap();
        assert_eq!((config.r, config.lora_alpha), (2, 4.0));
        for init in ["false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""] {
            let to = format!("\"init_lora_weights\": {init}");
            assert!(read("\"init_lora_weights\": true", &to).is_ok(), "{init}");
        }
    }

    #[test]
    fn dropout_and_magnitudes_are_read() {
        let config = read("\"lora_dropout\": 0.0", "\"lora_dropout\": 0.25").unwrap();
        assert_eq!((config.lora_dropout, config.use_dora), (Some(0.25), Some(false)));
        let config = read("\"use_dora\": false", "\"use_dora\": true").unwrap();
        assert_eq!((config.lora_dropout, config.use_dora), (Some(0.0), Some(true)));
        for rate in ["1.0", "-0.1"] {
            let to = format!("\"lora_dropout\": {rate}");
            let refusal = read("\"lora_dropout\": 0.0", &to).err().unwrap().to_string();
            assert!(refusal.ends_with("it must be 0 to 0.999"), "{refusal}");
        }
        let name = "base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector";
        assert_eq!(layer_of(name, true).unwrap(), "mlp.up_proj");
        assert!(layer_of(name, false).is_err());
    }

    #[test]
    fn settings_that_change_the_result_are_refused_by_name() {
        for (from, to) in [
            ("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa_niter_4\""),
            ("\"init_lora_weights\": true", "\"init_lora_weights\": \"loftq\""),
            ("\"bias\": \"none\"", "\"bias\": \"all\""),
            ("\"use_qalora\": false", "\"use_qalora\": true"),
            ("\"alora_invocation_tokens\": null", "\"alora_invocation_tokens\": [1]"),
            ("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\":3}"),
            ("\"use_dora\": false", "\"of_a_later_version\": 1"),
        ] {
            let refusal = read(from, to).err().unwrap().to_string();
            let (key, value) = to.split_once(": ").unwrap();
            let key = key.trim_matches('"');
            assert_eq!(refusal, format!("`{key}` is {value}: such adapters are not computed here"));
        }
    }
}

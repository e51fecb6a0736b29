//! Writing of adapters in the files of peft: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeSet, HashMap};
use std::fs::create_dir_all;
use std::io::Read;
use std::path::{Path, PathBuf};

use chimera_core::fault::Fault;
use chimera_core::model::{Lora, ModelConfig};
use chimera_core::stage::Param;
use serde_json::json;

use crate::files::disk::Disk;
use crate::files::tensors::{self, NamedTensor};
use crate::files::{io_fault, open_regular, write};
use crate::hf::to_hf;
use crate::hub::HubName;

/// The folder of an adapter in that of the model with it.
pub const ADAPTER: &str = "adapter";
/// The file of an adapter's settings.
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The file of its matrices.
pub(crate) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// The beginning of all names of tensors there.
pub(crate) const PREFIX: &str = "base_model.model.";

/// Writes the adapters among `weights` into `dir`, as peft writes those of the model `base`.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn save_adapter(
    dir: &Path,
    model: &ModelConfig,
    lora: &Lora,
    base: Option<&Path>,
    weights: &[(Param, Vec<f32>)],
) -> Result<PathBuf, Fault> {
    let path = dir.join(ADAPTER_WEIGHTS);
    create_dir_all(dir).map_err(|e| io_fault("adapter", &path, &e))?;
    let adapters = weights.iter().filter(|(param, _)| Lora::is_adapter(&param.name));
    let mut layers = BTreeSet::new();
    let tensors = adapters.map(|(param, values)| {
        layers.insert(layer_of(&param.name));
        let name = format!("{PREFIX}{}", to_hf(model.architecture, &param.name));
        NamedTensor::new(name, param.shape.clone(), values)
    });
    let tensors = tensors.collect();
    let format = HashMap::from([("format".into(), "pt".into())]);
    let written = tensors::write(&Disk::default(), &path, tensors, Some(format));
    written.map_err(|e| tensors::fault("adapter", &path, &e, "the adapter is not saved"))?;
    let on_hub = base.and_then(HubName::of_snapshot);
    let folder = base.map(|base| base.display().to_string());
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "inference_mode": true,
        "base_model_name_or_path": on_hub.as_ref().map(|name| name.repository().into()).or(folder),
        "revision": on_hub.as_ref().map(HubName::revision),
        "r": lora.rank, "lora_alpha": lora.alpha, "bias": "none",
        "lora_dropout": lora.dropout, "use_dora": lora.has_magnitudes,
        "fan_in_fan_out": model.architecture.name() == "gpt2", "target_modules": layers,
    });
    let config = format!("{config:#}\n");
    let path_of_config = dir.join(ADAPTER_CONFIG);
    write(&path_of_config, config.as_bytes())
        .map_err(|e| io_fault("adapter", &path_of_config, &e))?;
    Ok(path)
}

/// Copies the files of an adapter from the folder `from`, if it has them, to `to`.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn copy_adapter(from: &Path, to: &Path) -> Result<(), Fault> {
    let files = [ADAPTER_WEIGHTS, ADAPTER_CONFIG].map(|name| (from.join(name), to.join(name)));
    if !files.iter().all(|(from, _)| from.exists()) {
        return Ok(());
    }
    create_dir_all(to).map_err(|e| io_fault("adapter", to, &e))?;
    for (from, to) in files {
        let mut content = Vec::new();
        let read = open_regular(&from).and_then(|mut file| file.read_to_end(&mut content));
        read.map_err(|e| io_fault("adapter", &from, &e))?;
        write(&to, &content).map_err(|e| io_fault("adapter", &to, &e))?;
    }
    Ok(())
}

/// Returns the layer of a parameter, such as `self_attn.q_proj`.
fn layer_of(name: &str) -> &str {
    let layer = name.split_once(".lora_").map_or(name, |(layer, _)| layer);
    layer.splitn(3, '.').nth(2).unwrap_or(layer)
}

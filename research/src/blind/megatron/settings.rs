//! Settings of a run of Megatron-LM, under the names of its command line.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// Settings that a prediction would have to know, and does not.
const UNKNOWN: [&str; 17] = [
    "cuda-graph", "enable-cuda-graph", "exp-avg", "experimental-attention-variant", "fine-grained",
    "fp4", "fp8", "main-grads-dtype", "moe", "mtp", "multi-latent-attention", "num-experts",
    "optimizer-cpu-offload", "use-megatron-fsdp", "use-precision-aware-optimizer",
    "use-torch-fsdp2", "window-size",
];

/// The settings of a run, without those that change neither memory nor time.
#[derive(Debug)]
pub(super) struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Reads words such as `num-layers=12 bf16`.
    pub(super) fn of_words(words: &str) -> Result<Settings> {
        let split = |word: &str| {
            let (name, value) = word.split_once('=').unwrap_or((word, "true"));
            (name.to_string(), value.to_string())
        };
        Settings::known(words.split_whitespace().map(split).collect())
    }

    /// Reads the `MODEL_ARGS` of a `model_config.yaml`.
    pub(super) fn of_config(text: &str) -> Result<Settings> {
        let of_line = |line: &str| {
            let (name, value) = line.trim().strip_prefix("--")?.split_once(':')?;
            let value = value.split_once(" #").map_or(value, |(value, _)| value);
            Some((name.to_string(), value.trim().to_string()))
        };
        Settings::known(text.lines().filter_map(of_line).collect())
    }

    fn known(values: BTreeMap<String, String>) -> Result<Settings> {
        let settings = Settings(values);
        let names = settings.0.keys().filter(|name| settings.has(name));
        let unknown = |name: &&String| UNKNOWN.iter().any(|prefix| name.starts_with(prefix));
        match names.clone().find(unknown) {
            Some(name) => bail!("`--{name}` is not modelled"),
            None => Ok(settings),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns true if a switch is on.
    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some_and(|value| value != "false")
    }

    pub(super) fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => bail!("`--{name}` is `{text}`, which is not a number"),
        }
    }

    pub(super) fn size(&self, name: &str) -> Result<usize> {
        self.number(name)?.with_context(|| format!("`--{name}` is not known"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_configurations_say_the_same() {
        let words = Settings::of_words("num-layers=12 bf16").unwrap();
        let config = "ENV_VARS:\n  X: 1\nMODEL_ARGS:\n  --num-layers: 12 # few\n  --bf16: true\n";
        let config = Settings::of_config(config).unwrap();
        for settings in [words, config] {
            assert_eq!(settings.size("num-layers").unwrap(), 12);
            assert!(settings.has("bf16") && !settings.has("fp16"));
            assert!(settings.size("hidden-size").is_err());
        }
    }

    #[test]
    fn what_is_not_modelled_is_refused_by_name() {
        let refused = Settings::of_words("bf16 fp8-format=hybrid").unwrap_err();
        assert_eq!(refused.to_string(), "`--fp8-format` is not modelled");
        assert!(Settings::of_words("moe-grouped-gemm=false").is_ok());
    }
}

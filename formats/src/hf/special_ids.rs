//! Reading of the ids that begin, end and pad a text from the files of a model.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use chimera_core::model::ModelConfig;
use serde_json::{Map, Value};

use super::CONFIG;
use super::config::{MAX_CONFIG_BYTES, read_small};
use super::dropout::DropoutRates;
use super::folder::file_in;
use super::table::format;
use crate::special_ids::{KEYS, SpecialIds, object};

/// The settings of `transformers` for generating texts. Its ids that end a text override those of `config.json`.
pub const GENERATION: &str = "generation_config.json";

/// Larger files are ignored: checkpoints hold the content.
const MAX_GENERATION_BYTES: u64 = 1 << 16;

impl SpecialIds {
    /// Returns the ids of the model in `dir`.
    ///
    /// # Errors
    /// If `config.json` cannot be read, or gives a token an id that is not one; or if
    /// `generation_config.json` leads out of the folder.
    pub(super) fn read(dir: &Path) -> Result<SpecialIds> {
        let path = dir.join(CONFIG);
        let config: Map<String, Value> =
            serde_json::from_slice(&read_small(&path, MAX_CONFIG_BYTES)?)
                .with_context(|| path.display().to_string())?;
        let mut keys = Map::new();
        for (key, value) in config.into_iter().filter(|(key, _)| KEYS.contains(&key.as_str())) {
            ensure!(
                are_ids(&value),
                "{}: `{key}` is {value}, but must be the id of a token, a list of ids, or null",
                path.display()
            );
            keys.insert(key, value);
        }
        // As in `transformers`, a file that cannot be read is ignored.
        let generation = file_in(dir, GENERATION)?;
        let generation = generation.and_then(|path| read_small(&path, MAX_GENERATION_BYTES).ok());
        let generation = generation.and_then(|bytes| String::from_utf8(bytes).ok());
        let generation = generation.filter(|text| object(text).is_some());
        Ok(SpecialIds { keys, generation })
    }

    /// Returns the ids for a model made here: in a vocabulary of a well-known size, those that these tokens have there.
    pub fn usual(config: &ModelConfig) -> SpecialIds {
        let keys = (format(config.architecture).to_json)(config, &DropoutRates::all(0.0));
        let said = KEYS.iter().filter_map(|key| Some(((*key).to_owned(), keys.get(*key)?.clone())));
        SpecialIds { keys: said.collect(), generation: None }
    }

    /// Returns the ids in `said`, or else the usual ones of the model. If the data ends texts with
    /// `end`, that id ends a text.
    pub fn of(model: &ModelConfig, said: Option<&SpecialIds>, end: Option<u32>) -> SpecialIds {
        let ids = said.cloned().unwrap_or_else(|| SpecialIds::usual(model));
        match end {
            Some(end) if model.is_causal() => ids.ended_by(end),
            _ => ids,
        }
    }
}

/// Returns true for valid ids. Some models pad with -1, which is not a token.
fn are_ids(value: &Value) -> bool {
    match value {
        Value::Array(ids) => ids.iter().all(Value::is_i64),
        value => value.is_null() || value.is_i64(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::write;

    use chimera_core::model::Preset;
    use serde_json::json;

    use super::*;

    /// Returns the ids of a folder with these files.
    fn read(config: &str, generation: Option<&str>) -> Result<SpecialIds, String> {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path().join(CONFIG), config).unwrap();
        if let Some(generation) = generation {
            write(folder.path().join(GENERATION), generation).unwrap();
        }
        SpecialIds::read(folder.path()).map_err(|refusal| format!("{refusal:#}"))
    }

    fn config_of(ids: &SpecialIds) -> Value {
        let mut keys = json!({"eos_token_id": 7});
        ids.put_into(&mut keys);
        keys
    }

    #[test]
    fn what_ends_a_text_is_a_number_or_several() {
        let ends = |config: &str, generation| read(config, generation).unwrap().ends();
        assert_eq!(ends(r#"{"eos_token_id": 2}"#, None), [2]);
        assert_eq!(ends(r#"{"eos_token_id": [2, 3]}"#, None), [2, 3]);
        assert!(ends(r#"{"eos_token_id": null, "pad_token_id": -1}"#, None).is_empty());
        assert!(ends("{}", None).is_empty());
        let config = r#"{"eos_token_id": 2}"#;
        assert_eq!(ends(config, Some(r#"{"eos_token_id": [4, 5]}"#)), [4, 5]);
        for nothing in ["{}", r#"{"eos_token_id": null}"#, "[", "[1]", r#"{"eos_token_id": null"#] {
            assert_eq!(ends(config, Some(nothing)), [2], "{nothing}");
        }
        for wrong in ["\"</s>\"", "1.5", "[[1]]", "{}"] {
            let refusal = read(&format!("{{\"eos_token_id\": {wrong}}}"), None).unwrap_err();
            assert!(refusal.contains("`eos_token_id` is "), "{refusal}");
        }
    }

    #[test]
    fn a_model_takes_along_what_was_said() {
        let ids =
            read(r#"{"bos_token_id": 1, "eos_token_id": [2, 3]}"#, Some(" {\"a\": 1}")).unwrap();
        assert_eq!(config_of(&ids), json!({"bos_token_id": 1, "eos_token_id": [2, 3]}));
        assert_eq!(ids.generation(), Some(" {\"a\": 1}"));
        assert_eq!(
            config_of(&read("{}", None).unwrap()),
            json!({}),
            "what it lacks is not guessed"
        );
        let kept = serde_json::to_string(&ids).unwrap();
        assert_eq!(serde_json::from_str::<SpecialIds>(&kept).unwrap(), ids);
    }

    #[test]
    fn the_end_of_the_data_goes_before_that_of_the_model() {
        let model = &Preset::named("smollm-135m").unwrap().config;
        let usual = SpecialIds::of(model, None, None);
        assert_eq!(config_of(&usual), json!({"bos_token_id": 0, "eos_token_id": 0}));
        let ended = SpecialIds::of(model, None, Some(5));
        assert_eq!(config_of(&ended), json!({"bos_token_id": 0, "eos_token_id": 5}));
        let generation = Some(r#"{"eos_token_id": [2, 3], "top_p": 0.5}"#);
        let said = read(r#"{"eos_token_id": 2, "pad_token_id": 4}"#, generation).unwrap();
        assert_eq!(SpecialIds::of(model, Some(&said), Some(3)), said, "it is one of several");
        let ended = SpecialIds::of(model, Some(&said), Some(9));
        assert_eq!(config_of(&ended), json!({"eos_token_id": 9, "pad_token_id": 4}));
        assert_eq!(ended.ends(), [9]);
        assert!(ended.generation().unwrap().contains("\"top_p\": 0.5"));
    }
}

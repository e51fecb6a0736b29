//! The ids of the tokens that begin, end and pad a text, from the files of a model.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The keys of these ids in `config.json`.
pub(super) const KEYS: [&str; 3] = ["bos_token_id", END, "pad_token_id"];
/// The key of the ids that end a text.
const END: &str = "eos_token_id";

/// The tokens that begin, end and pad a text. A model keeps them from its source: nothing here is computed from them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SpecialIds {
    /// The values in `config.json`, by key. Keys that it lacks are absent; readers then use defaults of their own.
    pub(super) keys: Map<String, Value>,
    /// The content of `generation_config.json`, if it exists and is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<String>,
}

impl SpecialIds {
    /// Makes `end` the token that ends a text, unless it already is one of several that do.
    pub(super) fn ended_by(mut self, end: u32) -> SpecialIds {
        if self.ends().contains(&end) {
            return self;
        }
        self.keys.insert(END.into(), json!(end));
        if let Some(mut keys) = self.generation.as_deref().and_then(object) {
            keys.insert(END.into(), json!(end));
            self.generation = Some(format!("{:#}\n", Value::Object(keys)));
        }
        self
    }

    /// Returns the ids that end a text: those of `generation_config.json`, or else of `config.json`.
    pub fn ends(&self) -> Vec<u32> {
        let generation = self.generation.as_deref().and_then(object);
        let first = generation.and_then(|mut keys| keys.remove(END)).filter(|ids| !ids.is_null());
        match first.as_ref().or(self.keys.get(END)) {
            Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
            Some(value) => id(value).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// Returns the content of `generation_config.json`, if there is to be one.
    pub(crate) fn generation(&self) -> Option<&str> {
        self.generation.as_deref()
    }

    /// Puts the ids into `config.json`, replacing those that are there.
    pub(super) fn put_into(&self, config: &mut Value) {
        let Some(config) = config.as_object_mut() else { return };
        for key in KEYS {
            config.remove(key);
        }
        config.extend(self.keys.clone());
    }
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| id.try_into().ok())
}

/// Parses a JSON object, if the text is one.
pub(super) fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

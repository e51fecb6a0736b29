//! Reading a file of layers. Errors name the place in the file, as in `layers[2].forward_s`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chimera_formats::files::text_at_most;
use chimera_formats::unique_keys::UniqueKeys;
use serde_json::{Map, Value};

use super::{LayerCost, LayerCosts};

/// Longer files are refused before they are read.
const MAX_BYTES: u64 = 16 << 20;
/// Files with more layers are refused: stages have numbers of 16 bits.
const MOST_LAYERS: usize = 1 << 16;
/// Weights, gradients, and AdamW's two moments, all in one format.
const STATE_PER_WEIGHT: f64 = 4.0;
/// The version of the format.
const FORMAT: u64 = 1;

const FIELDS: &[&str] = &["format", "micro_batch_size", "state_per_weight", "layers"];
const LAYER_FIELDS: &[&str] = &[
    "name",
    "repeat",
    "forward_s",
    "input_s",
    "weight_s",
    "weight_bytes",
    "activation_bytes",
    "message_bytes",
];

impl LayerCosts {
    /// Reads the layers of a model.
    ///
    /// # Errors
    /// If the file cannot be read, or does not hold layers; the error names the field and what it must be.
    pub fn read(path: &Path) -> Result<LayerCosts> {
        let place = || path.display().to_string();
        let text = text_at_most(path, MAX_BYTES).with_context(place)?;
        let text = text.with_context(|| format!("it is longer than {MAX_BYTES} bytes"));
        LayerCosts::of(&text.with_context(place)?).with_context(place)
    }

    fn of(text: &str) -> Result<LayerCosts> {
        let UniqueKeys(value) = match serde_json::from_str(text) {
            Err(error) if error.is_data() => return Err(error.into()), // a repeated key
            read => read.context("it is no JSON")?,
        };
        let file = Fields::of(&value, "", FIELDS)?;
        file.whole("format", FORMAT, FORMAT, None)?;
        let micro_batch_size = file.whole("micro_batch_size", 1, 1 << 20, None)?;
        let state_per_weight = file.number("state_per_weight", 1.0, 1e3, Some(STATE_PER_WEIGHT))?;
        let Some(Value::Array(list)) = file.fields.get("layers") else {
            bail!("layers must be a list of one layer or more, the first one first")
        };
        let mut layers = Vec::new();
        for (nth, value) in list.iter().enumerate() {
            let at = Fields::of(value, &format!("layers[{nth}]"), LAYER_FIELDS)?;
            let layer = at.layer()?;
            let n = at.whole("repeat", 1, MOST_LAYERS as u64, Some(1))? as usize;
            ensure!(
                layers.len() + n <= MOST_LAYERS,
                "layers[{nth}].repeat makes more than {MOST_LAYERS} layers: join some"
            );
            layers.extend(std::iter::repeat_n(layer, n));
        }
        ensure!(!layers.is_empty(), "layers is empty: it must have one layer or more");
        let is_timed = layers.iter().any(|layer| layer.seconds() > 0.0);
        ensure!(is_timed, "layers take no time at all: at least one must");
        Ok(LayerCosts { micro_batch_size: micro_batch_size as usize, state_per_weight, layers })
    }
}

/// The fields of an object, all of which are known.
struct Fields<'v> {
    fields: &'v Map<String, Value>,
    /// Path of the object; empty for the file's own.
    at: String,
}

impl<'v> Fields<'v> {
    fn of(value: &'v Value, at: &str, known: &[&str]) -> Result<Fields<'v>> {
        let what = if at.is_empty() { "the file" } else { at };
        let Value::Object(fields) = value else {
            bail!("{what} must be an object with the fields {}", known.join(", "))
        };
        let unknown = fields.keys().find(|field| !known.contains(&field.as_str()));
        if let Some(unknown) = unknown {
            bail!("{what} has an unknown field `{unknown}`: choose from {}", known.join(", "))
        }
        let at = if at.is_empty() { String::new() } else { format!("{at}.") };
        Ok(Fields { fields, at })
    }

    fn layer(&self) -> Result<LayerCost> {
        if let Some(name) = self.fields.get("name") {
            ensure!(name.is_string(), "{}name is {name}; it must be a text", self.at);
        }
        let seconds = |key| self.number(key, 0.0, 1e9, None);
        let bytes = |key| self.number(key, 0.0, 1e18, None);
        Ok(LayerCost {
            forward_s: seconds("forward_s")?,
            input_s: seconds("input_s")?,
            weight_s: seconds("weight_s")?,
            weight_bytes: bytes("weight_bytes")?,
            activation_bytes: bytes("activation_bytes")?,
            message_bytes: bytes("message_bytes")?,
        })
    }

    fn number(&self, key: &str, least: f64, most: f64, default: Option<f64>) -> Result<f64> {
        let must = format!("it must be a number from {least} to {most:e}");
        let Some(value) = self.fields.get(key) else {
            return default.with_context(|| format!("{}{key} is missing: {must}", self.at));
        };
        let number = value.as_f64().filter(|x| (least..=most).contains(x));
        number.with_context(|| format!("{}{key} is {value}; {must}", self.at))
    }

    fn whole(&self, key: &str, least: u64, most: u64, default: Option<u64>) -> Result<u64> {
        let must = if least == most {
            format!("it must be {least}")
        } else {
            format!("it must be a whole number from {least} to {most}")
        };
        let Some(value) = self.fields.get(key) else {
            return default.with_context(|| format!("{}{key} is missing: {must}", self.at));
        };
        let number = value.as_u64().filter(|n| (least..=most).contains(n));
        number.with_context(|| format!("{}{key} is {value}; {must}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"format": 1, "micro_batch_size": 2, "layers": [
        {"name": "table", "forward_s": 0, "input_s": 0, "weight_s": 1e-3, "weight_bytes": 8,
         "activation_bytes": 0, "message_bytes": 4},
        {"repeat": 3, "forward_s": 1, "input_s": 1.5, "weight_s": 0.5, "weight_bytes": 16,
         "activation_bytes": 32, "message_bytes": 4}]}"#;

    #[test]
    fn layers_stand_as_often_as_they_repeat() {
        let model = LayerCosts::of(GOOD).expect("sound");
        assert_eq!((model.n_layers(), model.micro_batch_size), (4, 2));
        assert_eq!((model.layers[0].weight_s, model.layers[3].input_s), (1e-3, 1.5));
        assert_eq!(model.state_per_weight, STATE_PER_WEIGHT);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_it_must_be() {
        for (from, to, named) in [
            (
                "\"weight_s\": 0.5",
                "\"weight_s\": -1",
                "layers[1].weight_s is -1; it must be a number from 0 to 1e9",
            ),
            ("\"weight_s\": 0.5", "\"weight_s\": NaN", "it is no JSON"),
            ("\"weight_s\": 0.5", "\"weight_s\": 1e999", "it is no JSON"),
            (
                "\"weight_s\": 0.5",
                "\"weight_s\": \"1\"",
                "layers[1].weight_s is \"1\"; it must be a number",
            ),
            ("\"weight_s\": 0.5,", "", "layers[1].weight_s is missing: it must be a number"),
            (
                "\"weight_s\": 0.5",
                "\"weight\": 0.5",
                "layers[1] has an unknown field `weight`: choose from name, repeat",
            ),
            (
                "\"repeat\": 3",
                "\"repeat\": 0",
                "layers[1].repeat is 0; it must be a whole number from 1 to 65536",
            ),
            ("\"repeat\": 3", "\"repeat\": 65536", "layers[1].repeat makes more than 65536 layers"),
            ("\"format\": 1", "\"format\": 2", "format is 2; it must be 1"),
            ("\"format\": 1", "\"form\": 1", "the file has an unknown field `form`"),
            (
                "\"micro_batch_size\": 2",
                "\"micro_batch_size\": 1.5",
                "micro_batch_size is 1.5; it must be a whole number",
            ),
            ("\"repeat\": 3", "\"repeat\": 3, \"repeat\": 4", "duplicate field `repeat` at line 4"),
            ("\"format\": 1", "\"format\": 1, \"format\": 1", "duplicate field `format` at line 1"),
            ("\"name\": \"table\"", "\"name\": 7", "layers[0].name is 7; it must be a text"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let refused = LayerCosts::of(&GOOD.replace(from, to)).expect_err(to);
            assert!(format!("{refused:#}").contains(named), "{to}: {refused:#}");
        }
        let head = r#"{"format": 1, "micro_batch_size": 2"#;
        for (text, named) in [
            ("[]".to_string(), "the file must be an object"),
            (String::new(), "it is no JSON"),
            (format!("{head}}}"), "layers must be a list of one layer or more"),
            (format!("{head}, \"layers\": []}}"), "layers is empty"),
            (format!("{head}, \"layers\": [3]}}"), "layers[0] must be an object"),
        ] {
            let refused = LayerCosts::of(&text).expect_err(&text);
            assert!(format!("{refused:#}").contains(named), "{text}: {refused:#}");
        }
    }
}

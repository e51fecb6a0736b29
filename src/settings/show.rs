//! Printing settings with their origins.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use toml::Table;

use super::{Config, Layers, Settings};

impl Config {
    /// All values as TOML that reads back to the same configuration, each with its origin.
    pub fn to_toml(&self) -> String {
        let keys = Settings::keys();
        let said = keys.iter().filter_map(|key| Some((key, self.value(key)?)));
        let lines: Vec<_> =
            said.map(|(key, (value, origin))| (format!("{key} = {value}"), origin)).collect();
        let width = lines.iter().map(|(line, _)| line.chars().count().min(32)).max().unwrap_or(0);
        let mut text = String::new();
        for (line, origin) in lines {
            // A path may hold what a comment must not.
            let origin = origin.to_string().replace(char::is_control, "?");
            let _ = writeln!(text, "{line:width$}  # {origin}");
        }
        text
    }

    /// All values by key, each as `{"value": …, "origin": …}`.
    pub fn to_json(&self) -> Value {
        let keys = Settings::keys().into_iter();
        let said = keys.filter_map(|key| {
            let (value, origin) = self.value(&key)?;
            let entry = json!({ "value": value, "origin": origin.to_string() });
            Some((key, entry))
        });
        Value::Object(Map::from_iter(said))
    }
}

impl Layers {
    /// The options that say the same to a shell.
    pub fn options(&self) -> String {
        let said = Table::try_from(&self.settings).unwrap_or_default();
        let mut options = String::new();
        if let Some(file) = &self.config {
            let _ = write!(options, " --config {}", word(&file.display().to_string()));
        }
        for key in Settings::keys() {
            let Some(value) = said.get(&key) else { continue };
            let _ = write!(options, " --{key}");
            let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            for value in values {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let _ = write!(options, " {}", word(&text));
            }
        }
        options.trim_start().to_string()
    }
}

/// A word as a shell reads it back.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+=@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_string(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn values(config: &Config) -> Config {
        Config { entries: Default::default(), ..config.clone() }
    }

    #[test]
    fn what_is_shown_reads_back() {
        let settings = Settings {
            data: Some(vec!["a b".into(), "c\n\"d\"".into()]),
            lr: Some(0.1 + 0.2),
            seed: Some(i64::MAX),
            out: Some("runs/x".into()),
            ..Settings::default()
        };
        let first = Layers { config: None, settings }.resolve().unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("shown\n.toml");
        fs::write(&path, first.to_toml()).unwrap();
        let again = Layers { config: Some(path.clone()), ..Layers::default() }.resolve().unwrap();
        assert_eq!(values(&again), values(&first));
        fs::write(&path, again.to_toml()).unwrap();
        let thrice = Layers { config: Some(path), ..Layers::default() }.resolve().unwrap();
        assert_eq!(values(&thrice), values(&first));
    }

    #[test]
    fn options_are_words_of_a_shell() {
        let settings = Settings {
            data: Some(vec!["a b".into(), "it's".into()]),
            depth: Some(2),
            tied: Some(true),
            lr: Some(1e-3),
            ..Settings::default()
        };
        let layers = Layers { config: Some("run.toml".into()), settings };
        let wanted = r"--config run.toml --data 'a b' 'it'\''s' --depth 2 --tied true --lr 0.001";
        assert_eq!(layers.options(), wanted);
    }

    #[test]
    fn origins_stand_beside_values() {
        let settings = Settings { depth: Some(2), ..Settings::default() };
        let config = Layers { config: None, settings }.resolve().unwrap();
        let shown = config.to_toml();
        assert!(shown.contains("\ndepth = 2 "), "{shown}");
        let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap();
        assert!(line("depth").ends_with("# command line"));
        assert!(line("hidden").ends_with("# preset tiny"));
        assert!(line("warmup = 30").ends_with("# default"));
        assert_eq!(config.to_json()["depth"]["value"], 2);
        assert_eq!(config.to_json()["lr"]["origin"], "default");
    }
}

//! Printing settings with their origins.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{Config, Settings};

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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::Layers;

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

//! Prints settings with their origins.

use std::fmt::{self, Write};

use chimera_core::model::Partition;
use serde_json::{Map, Value, json};

use crate::{Config, Layers, Layout, OPTIONS, OWN_MODEL, Origin};

impl Config {
    /// Lists all keys that have values, with the values and their origins.
    fn said(&self) -> impl Iterator<Item = (&'static str, toml::Value, &Origin)> {
        OPTIONS.iter().filter_map(|option| {
            let (value, origin) = self.value(option.name)?;
            let is_own = option.name == "model" && self.own_model.is_some();
            Some((if is_own { OWN_MODEL } else { option.name }, value, origin))
        })
    }

    /// Lists all keys that have values, in the form for a file. A value that only suits this
    /// machine becomes `auto`, and its origin has the value on this machine. The origin of `layout`
    /// has the layout that was found.
    fn open(
        &self,
        layout: Option<&Partition>,
    ) -> impl Iterator<Item = (&'static str, toml::Value, String)> {
        let layout = layout.filter(|_| !matches!(self.schedule.layout, Layout::Is(_)));
        self.said().map(move |(key, value, origin)| match (origin, layout) {
            (Origin::Machine, _) if is_auto(key) => {
                (key, "auto".into(), format!("default; {value} on this machine"))
            }
            (_, Some(layout)) if key == "layout" => (key, value, format!("{origin}; {layout}")),
            _ => (key, value, origin.to_string()),
        })
    }

    /// Prints all values as TOML that reads back to the same configuration, each with its origin.
    pub fn to_toml(&self) -> String {
        lines(self.said().map(|(key, value, origin)| (key, value, origin.to_string())))
    }

    /// Prints the settings as TOML that reads back to the same configuration on any machine that
    /// resolves it in the same way, with the `layout` that was found, if it is known.
    pub fn to_open_toml(&self, layout: Option<&Partition>) -> String {
        lines(self.open(layout))
    }

    /// Returns the settings by key, each as `{"value": …, "origin": …}`, with the `layout` that was
    /// found.
    pub fn to_json(&self, layout: Option<&Partition>) -> Value {
        let said = self.open(layout).map(|(key, value, origin)| {
            (key.to_string(), json!({ "value": value, "origin": origin }))
        });
        Value::Object(Map::from_iter(said))
    }
}

/// Returns true if the default of an option is `auto`.
fn is_auto(key: &str) -> bool {
    OPTIONS.iter().any(|option| option.name == key && option.default(false) == "auto")
}

/// Prints each key with its value, and its origin as a comment.
fn lines(said: impl Iterator<Item = (&'static str, toml::Value, String)>) -> String {
    let lines = said.map(|(key, value, origin)| (format!("{key} = {value}"), origin));
    let lines: Vec<_> = lines.collect();
    let width = lines.iter().map(|(line, _)| line.chars().count().min(32)).max().unwrap_or(0);
    let mut text = String::new();
    for (line, origin) in lines {
        // A path may contain characters that are not allowed in a comment.
        let origin = origin.replace(char::is_control, "?");
        let _ = writeln!(text, "{line:width$}  # {origin}");
    }
    text
}

impl Layers {
    /// Returns command-line options for a shell that give the same settings.
    pub fn options(&self) -> String {
        let mut options = String::new();
        if let Some(file) = &self.config {
            let _ = write!(options, " --config {}", quoted(file.display()));
        }
        for (key, value) in self.settings.iter() {
            let _ = write!(options, " --{key}");
            let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            for value in values {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let _ = write!(options, " {}", quoted(&text));
            }
        }
        options.trim_start().to_string()
    }
}

/// Quotes a word for a POSIX shell.
pub fn quoted(word: impl fmt::Display) -> String {
    let word = word.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+=@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Prints the table of options as Markdown: name, default and meaning, under their headings.
pub fn markdown() -> String {
    let mut page = String::new();
    for (nth, option) in OPTIONS.iter().enumerate() {
        if nth == 0 || OPTIONS[nth - 1].heading != option.heading {
            let _ = write!(
                page,
                "\n**{}**\n\n| key | default | meaning |\n|---|---|---|\n",
                option.heading
            );
        }
        let see = option.more().map(|see| format!(": [more]({see})")).unwrap_or_default();
        let _ = writeln!(
            page,
            "| `{}` | {} | {}{see} |",
            option.name,
            option.default(false),
            option.about().replace('|', "\\|")
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sources::outside::Files;

    fn values(config: &Config) -> Config {
        Config { origins: Default::default(), ..config.clone() }
    }

    fn layers(options: &str) -> Layers {
        Layers::parse(options).unwrap()
    }

    #[test]
    fn what_is_shown_reads_back() {
        let mut first = layers("--lr 0.30000000000000004 --seed 9223372036854775807 --out runs/x");
        let files = ["a b", "c\n\"d\""].map(toml::Value::from).to_vec();
        first.settings = first.settings.with("data", files);
        let first = first.resolve(&Files).unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("shown\n.toml");
        fs::write(&path, first.to_toml()).unwrap();
        let shown = Layers { config: Some(path.clone()), ..Layers::default() };
        let again = shown.resolve(&Files).unwrap();
        assert_eq!(values(&again), values(&first));
        fs::write(&path, again.to_toml()).unwrap();
        assert_eq!(values(&shown.resolve(&Files).unwrap()), values(&first));
    }

    #[test]
    fn options_are_words_of_a_shell() {
        let mut layers = layers("--tied --lr 1e-3 --depth 2 --config run.toml");
        let files = ["a b", "it's"].map(toml::Value::from).to_vec();
        layers.settings = layers.settings.with("data", files);
        let wanted = r"--config run.toml --data 'a b' 'it'\''s' --depth 2 --tied true --lr 0.001";
        assert_eq!(layers.options(), wanted);
        for (word, wanted) in [("a,b:/c=+@%", "a,b:/c=+@%"), ("", "''"), ("$a~", "'$a~'")] {
            assert_eq!(quoted(word), wanted);
        }
    }

    #[test]
    fn origins_stand_beside_values() {
        let config = layers("--depth 2").resolve(&Files).unwrap();
        let shown = config.to_toml();
        assert!(shown.contains("\ndepth = 2 "), "{shown}");
        let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap();
        assert!(line("depth").ends_with("# command line"));
        assert!(line("hidden").ends_with("# preset tiny"));
        assert!(line("warmup = 30").ends_with("# default"));
        assert_eq!(config.to_json(None)["depth"]["value"], 2);
        assert_eq!(config.to_json(None)["lr"]["origin"], "default");
    }

    #[test]
    fn settings_of_a_model_of_a_program_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let own = Layers::parse("--depth 2 --hidden 64").unwrap().resolve(&Files).unwrap();
        let shown = own.of_model("mine").to_toml();
        fs::write(&path, &shown).unwrap();
        let layers = Layers { config: Some(path), ..Layers::default() };
        let again = layers.resolve(&Files).unwrap();
        assert_eq!(again.value("model").unwrap().0, toml::Value::from("mine"));
        assert_eq!((again.schedule.depth, again.value("hidden")), (2, None));
        let keys = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split_once('#').unwrap().0.trim().to_owned()).collect()
        };
        assert_eq!(keys(&again.to_toml()), keys(&shown));
        assert!(again.check_own_model(|name| name == "mine").is_ok());
        let refusal = again.check_own_model(|_| false).unwrap_err().to_string();
        let wanted = "config.toml:";
        assert!(
            refusal.contains(wanted) && refusal.contains("`own-model` is \"mine\""),
            "{refusal}"
        );
    }
}

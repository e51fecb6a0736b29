//! Settings from one line of text, in the words of the command line.

use std::iter::Peekable;
use std::str::SplitWhitespace;

use toml::Value;

use super::check::option;
use crate::{Kind, Layers, Opt, Settings, SettingsError};

impl Layers {
    /// Parses options of `chimera train`, separated by spaces: `--depth 2 --tied --data a b`.
    ///
    /// # Errors
    /// Names the first word that is not an option, or whose value is not of its kind.
    pub fn parse(line: &str) -> Result<Layers, SettingsError> {
        let mut words = line.split_whitespace().peekable();
        let mut layers = Layers { config: None, settings: Settings::of_command_line() };
        while let Some(word) = words.next() {
            layers.read(word, &mut words).map_err(|message| {
                let place = "command line".into();
                SettingsError { place, message }
            })?;
        }
        Ok(layers)
    }

    /// Reads an option, whose values may be the next words.
    fn read(
        &mut self,
        word: &str,
        words: &mut Peekable<SplitWhitespace<'_>>,
    ) -> Result<(), String> {
        let named = word.strip_prefix("--").ok_or_else(|| format!("`{word}` is no option"))?;
        let (name, value) = match named.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (named, None),
        };
        let mut next = || words.next_if(|word| !word.starts_with("--"));
        if name == "config" {
            let file = value.or_else(next).ok_or("`config` has no file")?;
            self.config = Some(file.into());
            return Ok(());
        }
        let option = option(name)?;
        let mut values = Vec::from_iter(value.or_else(&mut next));
        if matches!(option.kind, Kind::Paths) && value.is_none() {
            values.extend(std::iter::from_fn(next));
        }
        self.settings.add(option, &values)
    }
}

impl Settings {
    /// Adds the values of an option: more files, or one value in place of another.
    fn add(&mut self, option: &Opt, words: &[&str]) -> Result<(), String> {
        let parse = |word: &str| {
            let value = option.kind.parse(word);
            value.ok_or_else(|| format!("`{word}` is not {}", option.kind_where(false)))
        };
        let value = match (option.kind, words) {
            (Kind::Flag, []) => Value::Boolean(true),
            (_, []) => return Err(format!("`{}` has no value", option.name)),
            (Kind::Paths, words) => {
                let before = self.values.remove(option.name);
                let mut files = before.and_then(|files| files.try_into().ok()).unwrap_or_default();
                Vec::extend(&mut files, words.iter().map(|word| Value::from(*word)));
                Value::Array(files)
            }
            (_, words) => parse(words[0])?,
        };
        self.values.insert(option.name.to_owned(), value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_line_become_values() {
        let layers = Layers::parse("--tied --lr=1e-3 --depth 2 --data a b --config run.toml");
        let given = Settings::default().with("depth", 3).with("depth", 2).with("lr", 1e-3);
        let files = vec!["a", "b"];
        let given = given.with("tied", true).with("data", files);
        let given = Settings { is_command_line: true, ..given };
        assert_eq!(layers, Ok(Layers { config: Some("run.toml".into()), settings: given }));
        let several = Layers::parse("--data a --depth 3 --data b --depth 2").unwrap();
        assert_eq!(several, Layers::parse("--depth 2 --data a b").unwrap());
        assert_eq!(Layers::parse("--tied false"), Layers::parse("--tied=false"));
        assert_eq!(Layers::parse("--min-lr -1"), Layers::parse("--min-lr=-1"));
    }

    #[test]
    fn words_that_are_no_options_are_named() {
        for (line, message) in [
            ("depth 2", "command line: `depth` is no option"),
            ("--dept 2", "command line: unknown key `dept`: did you mean `depth`?"),
            ("--depth two", "command line: `two` is not a whole number from 1 to 8192"),
            ("--depth --tied", "command line: `depth` has no value"),
            ("--tied 2", "command line: `2` is not true or false"),
        ] {
            assert_eq!(Layers::parse(line).unwrap_err().to_string(), message);
        }
    }
}

//! Reads TOML files of settings, and the files they extend.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeString, DeTable};
use toml::{Spanned, Table, Value};

use super::check::{check, option};
use super::origin::{Entries, OWN_MODEL};
use crate::{Origin, Outside, SettingsError};

/// Longest chain of files that extend each other.
const MAX_CHAIN: usize = 16;

/// Loads the entries of the file at `path`, merged over those of the files it extends.
pub(crate) fn load(path: &Path, outside: &dyn Outside) -> Result<Entries, SettingsError> {
    let mut entries = Entries::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut next = Some((path.to_path_buf(), String::new()));
    while let Some((path, asked_by)) = next {
        let refuse = |message: String| SettingsError { place: asked_by.clone(), message };
        let identity = outside.identity(&path);
        if seen.contains(&identity) {
            return Err(refuse(format!("`extends` runs in a circle through {}", path.display())));
        }
        if seen.len() == MAX_CHAIN {
            return Err(refuse(format!("`extends` chains more than {MAX_CHAIN} files")));
        }
        seen.push(identity);
        let text = outside.settings(&path).map_err(refuse)?;
        let layer = parse(&path, &text)?;
        for (key, value) in layer.entries {
            entries.entry(key).or_insert(value); // the extending file was read before
        }
        next = layer.extends;
    }
    Ok(entries)
}

/// The content of one file: its entries, and the file it extends with the place that names it.
struct Layer {
    entries: Entries,
    extends: Option<(PathBuf, String)>,
}

fn parse(path: &Path, text: &str) -> Result<Layer, SettingsError> {
    let line = |offset: usize| text[..offset].matches('\n').count() + 1;
    let syntax = |e: toml::de::Error| SettingsError {
        place: place(path, e.span().map_or(1, |span| line(span.start))),
        message: match e.message() {
            // The parser's message for numbers that do not fit its own type.
            message if message.starts_with("invalid type: integer") => {
                "a whole number is at most 2^63 - 1".into()
            }
            message => message.to_owned(),
        },
    };
    let spans = DeTable::parse(text).map_err(syntax)?;
    let values: Table = toml::from_str(text).map_err(syntax)?;
    let mut layer = Layer { entries: Entries::new(), extends: None };
    for (key, span, value) in keys(spans.get_ref(), values) {
        let line = line(span.start);
        let place = place(path, line);
        let refuse = |message: String| SettingsError { place: place.clone(), message };
        if key == "extends" {
            let base = value.as_str().ok_or_else(|| refuse("`extends` must be a path".into()))?;
            let folder = path.parent().unwrap_or(Path::new(""));
            layer.extends = Some((folder.join(base), place));
            continue;
        }
        let origin = Origin::File(path.to_path_buf(), line);
        if key == OWN_MODEL {
            let is_name = value.as_str().is_some_and(|name| !name.is_empty());
            if !is_name {
                return Err(refuse(format!("`{OWN_MODEL}` must be the name of a model")));
            }
            layer.entries.insert(OWN_MODEL, (value, origin));
            continue;
        }
        let option = option(&key).map_err(refuse)?;
        let value = check(option, value).map_err(refuse)?;
        if layer.entries.insert(option.name, (value, origin)).is_some() {
            return Err(refuse(format!("`{}` is set twice", option.name)));
        }
    }
    Ok(layer)
}

/// Lists keys with their places and values, in the order of the text; sections only group them.
fn keys(spans: &DeTable, mut values: Table) -> Vec<(String, Range<usize>, Value)> {
    let mut keys = Vec::new();
    for (key, inner) in spans.iter() {
        match (values.remove(key.get_ref().as_ref()), inner.get_ref().as_table()) {
            (Some(Value::Table(mut values)), Some(section)) => {
                let key = |key: &Spanned<DeString>| {
                    let value = values.remove(key.get_ref().as_ref())?;
                    Some((key.get_ref().to_string(), key.span(), value))
                };
                keys.extend(section.keys().filter_map(key));
            }
            (Some(value), _) => keys.push((key.get_ref().to_string(), key.span(), value)),
            (None, _) => {}
        }
    }
    keys.sort_by_key(|(_, span, _)| span.start);
    keys
}

fn place(path: &Path, line: usize) -> String {
    format!("{}:{line}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::sources::outside::Files;

    fn load(path: &Path) -> Result<Entries, SettingsError> {
        super::load(path, &Files)
    }

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    /// Returns the error for `name`, without the folder.
    fn refusal(files: &[(&str, &str)], name: &str) -> String {
        let folder = folder(files);
        let path = folder.path().join(name);
        let refusal = load(&path).unwrap_err().to_string();
        refusal.replace(&format!("{}/", folder.path().display()), "")
    }

    #[test]
    fn a_file_overrides_what_it_extends() {
        let folder = folder(&[
            ("run.toml", "# mine\nextends = 'base.toml'\ndepth = 2\n"),
            ("base.toml", "extends = \"root.toml\"\ndepth = 8\n\nsteps = 5"),
            ("root.toml", "steps = 6\nseed = 7"),
        ]);
        let entries = load(&folder.path().join("run.toml")).unwrap();
        let at = |name: &str, line| Origin::File(folder.path().join(name), line);
        assert_eq!(
            entries.into_iter().collect::<Vec<_>>(),
            [
                ("depth", (Value::Integer(2), at("run.toml", 3))),
                ("seed", (Value::Integer(7), at("root.toml", 2))),
                ("steps", (Value::Integer(5), at("base.toml", 4))),
            ]
        );
    }

    #[test]
    fn sections_only_group_keys() {
        let text = "steps = 6\n[training]\nmicro_batches = 4\n\n[parallelism]\ndepth = 2";
        let folder = folder(&[("run.toml", text)]);
        let entries = load(&folder.path().join("run.toml")).unwrap();
        let lines = entries.into_iter().map(|(key, (_, origin))| match origin {
            Origin::File(_, line) => (key, line),
            other => panic!("{other}"),
        });
        assert_eq!(lines.collect::<Vec<_>>(), [("depth", 6), ("micro-batches", 3), ("steps", 1)]);
    }

    #[test]
    fn refusals_name_the_line() {
        for (text, line) in [
            ("a.b = 1", "1: unknown key `b`: did you mean `bpipe`?"),
            ("[a]\nb.c = 1", "2: unknown key `b`: did you mean `bpipe`?"),
            ("[a]\nsteps = 5\n[b]\nsteps = 6", "4: `steps` is set twice"),
            ("seq_len = 8\nsequence = 8", "2: `sequence` is set twice"),
            (
                "depth = 4\nmicro-batch = 2",
                "2: unknown key `micro-batch`: did you mean `micro-batches`?",
            ),
            ("\n\nsteps = 0", "3: `steps` is 0; it must be a whole number from 1 to 1099511627776"),
            ("extends = 3", "1: `extends` must be a path"),
            ("own-model = 3", "1: `own-model` must be the name of a model"),
            ("depth = 4\ndepth = 5", "2: duplicate key"),
        ] {
            assert_eq!(refusal(&[("a.toml", text)], "a.toml"), format!("a.toml:{line}"));
        }
        let syntax = refusal(&[("a.toml", "depth = 4\nwidth 2")], "a.toml");
        assert!(syntax.starts_with("a.toml:2: "), "{syntax}");
    }

    #[test]
    fn chains_end() {
        let circle = [("a.toml", "extends = 'b.toml'"), ("b.toml", "\nextends = './a.toml'")];
        assert_eq!(
            refusal(&circle, "a.toml"),
            "b.toml:2: `extends` runs in a circle through ./a.toml"
        );
        let files: Vec<_> =
            (0..17).map(|i| (format!("{i}.toml"), format!("extends = '{}.toml'", i + 1))).collect();
        let files: Vec<_> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let files = [&files[..], &[("17.toml", "")]].concat();
        assert_eq!(refusal(&files, "0.toml"), "15.toml:1: `extends` chains more than 16 files");
        let missing = refusal(&[("a.toml", "extends = 'b.toml'")], "a.toml");
        assert!(missing.starts_with("a.toml:1: cannot read b.toml: No such file"), "{missing}");
    }

    const GOOD: &str = "# mine\nextends = \"base.toml\"\ndepth = 2 # two\nlr = 1e-3\n\
                        data = ['a', '''b''']\nin-flight = 0x1F\nsave = \"\\u00e9\\n\"\n";

    proptest! {
        #[test]
        fn no_text_makes_it_panic(
            at in 0..GOOD.len(),
            len in 0..9usize,
            put in ".{0,4}|[\\[{\"'=.\n]{0,9}",
        ) {
            let mut text = GOOD.to_owned();
            text.replace_range(at..(at + len).min(GOOD.len()), &put);
            let _ = parse(Path::new("run.toml"), &text);
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        let deep = format!("depth = {}", "[".repeat(100_000));
        assert!(refusal(&[("a.toml", &deep)], "a.toml").starts_with("a.toml:1: "));
        let folder = TempDir::new().unwrap();
        assert!(load(folder.path()).unwrap_err().to_string().starts_with("cannot read "));
    }
}

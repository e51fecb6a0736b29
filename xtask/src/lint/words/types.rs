//! Names of types: one name means one thing in a crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders of commands and chores, whose option types are named after them.
const COMMANDS: [&str; 5] =
    ["src/cli/commands", "xtask", "research", "tests/peers", "tests/torture"];
/// Parts that each model's folder has.
const OF_MODELS: [&str; 4] = ["Family", "Saved", "Selected", "Deferred"];
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Types by the folder of their crate and their name.
#[derive(Default)]
pub(super) struct Types(BTreeMap<(PathBuf, String), Vec<Type>>);

struct Type {
    file: PathBuf,
    is_private: bool,
}

impl Types {
    /// Adds the top-level types that a library's file declares before its tests.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let is_command = COMMANDS.iter().any(|folder| file.starts_with(folder));
        let Some(library) = file.ancestors().find(|folder| folder.ends_with("src")) else { return };
        // A file that stands in for another in smaller builds declares the same names.
        let stands_in =
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("no_"));
        if is_command || stands_in || file.ends_with("tests.rs") {
            return;
        }
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (name, is_private) in code.lines().filter_map(declared) {
            let found = Type { file: file.to_path_buf(), is_private };
            let key = (library.to_path_buf(), name.to_string());
            self.0.entry(key).or_default().push(found);
        }
    }

    /// The names that stand for two things. Private types of neighbouring files may share one, e.g.
    /// for the same part of several kernels.
    pub(super) fn refused(&self) -> impl Iterator<Item = String> {
        let twice = self.0.iter().filter(|((_, name), types)| {
            let folder = types[0].file.parent();
            let is_parallel = |t: &Type| t.is_private && t.file.parent() == folder;
            types.len() > 1 && !OF_MODELS.contains(&name.as_str()) && !types.iter().all(is_parallel)
        });
        twice.map(|((_, name), types)| {
            let files: Vec<_> = types.iter().map(|t| t.file.display().to_string()).collect();
            format!("type `{name}` stands for more than one thing: {}", files.join(", "))
        })
    }
}

/// The name of the top-level type that a line declares, and whether it is private to its file.
fn declared(line: &str) -> Option<(&str, bool)> {
    let is_private = !line.starts_with("pub");
    let words = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let (keyword, rest) = words.split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric()).next()?;
    KEYWORDS.contains(&keyword).then_some((name, is_private))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(files: &[(&str, &str)]) -> Vec<String> {
        let mut types = Types::default();
        for (file, text) in files {
            types.add(Path::new(file), text);
        }
        types.refused().collect()
    }

    #[test]
    fn a_name_stands_for_one_thing() {
        let said =
            refused(&[("src/a/b.rs", "pub(super) struct Row<'a> {"), ("src/c.rs", "enum Row {")]);
        assert_eq!(said, ["type `Row` stands for more than one thing: src/a/b.rs, src/c.rs"]);
        let public = [("src/a/b.rs", "pub struct Row;"), ("src/a/c.rs", "pub trait Row {")];
        assert_eq!(refused(&public).len(), 1);
    }

    #[test]
    fn private_types_side_by_side_and_options_of_commands_may_share_one() {
        let kernels = [("src/cpu/a.rs", "struct Forward {"), ("src/cpu/b.rs", "struct Forward {")];
        assert!(refused(&kernels).is_empty());
        let commands =
            [("src/cli/commands/run.rs", "struct Run {"), ("src/run.rs", "pub struct Run;")];
        assert!(refused(&commands).is_empty());
        let tests = [
            ("src/a.rs", "struct A;\n#[cfg(test)]\nmod tests {\nstruct B;"),
            ("src/c/b.rs", "struct B;"),
        ];
        assert!(refused(&tests).is_empty());
    }
}

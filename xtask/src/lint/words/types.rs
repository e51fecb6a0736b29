//! Names of types: one name means one thing in a crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders of commands and chores, whose types of options are named after them.
const COMMANDS: [&str; 5] =
    ["src/cli/commands", "xtask", "research", "tests/peers", "tests/torture"];
/// The parts that each model's folder has.
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
    /// Adds what a file of a library declares before its tests, at the top level.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let is_command = COMMANDS.iter().any(|folder| file.starts_with(folder));
        let Some(library) = file.ancestors().find(|folder| folder.ends_with("src")) else { return };
        // One that stands in for another in smaller builds has its names.
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

    /// The names that stand for two things. Private types of files side by side may share one: the same part of
    /// several kernels, say.
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

/// The name of the type that a line declares at the top level, and whether only its file sees it.
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

//! Names of files with wildcards, where no shell has resolved them.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use glob::{MatchOptions, glob_with};

/// The paths themselves, and in the place of each that is not there but is a pattern (`*`, `**`, `?`, `[a-z]`) those that
/// fit it in the order of their names, but hidden ones.
///
/// # Errors
/// If a pattern is malformed, or fits nothing.
pub(crate) fn matching(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        let pattern = path.to_str().filter(|text| text.contains(['*', '?', '[']));
        let Some(pattern) = pattern.filter(|_| !path.exists()) else {
            all.push(path.clone());
            continue;
        };
        let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
        let named = || format!("cannot read {pattern}");
        let found = glob_with(pattern, options).with_context(named)?;
        let found = found.collect::<Result<Vec<_>, _>>().with_context(named)?;
        ensure!(!found.is_empty(), "{pattern}: no file fits this pattern");
        all.extend(found);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_pattern_is_what_fits_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        for name in ["b.txt", "a.txt", ".hidden.txt", "c.md", "deep/d.txt", "[x].txt"] {
            fs::write(at(name), "x").unwrap();
        }
        let found = |pattern: &str| {
            let found = matching(&[at(pattern)]).map_err(|refusal| format!("{refusal:#}"))?;
            let name =
                |path: &PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
            Ok::<_, String>(found.iter().map(name).collect::<Vec<_>>())
        };
        assert_eq!(found("*.txt").unwrap(), ["[x].txt", "a.txt", "b.txt"]);
        assert_eq!(found("[ab].txt").unwrap(), ["a.txt", "b.txt"]);
        assert_eq!(found("**/d.txt").unwrap(), ["deep/d.txt"]);
        assert_eq!(found("de?p").unwrap(), ["deep"], "a folder fits too");
        assert_eq!(found("[x].txt").unwrap(), ["[x].txt"], "a file of that name goes before");
        assert_eq!(found("none.txt").unwrap(), ["none.txt"], "who reads it refuses it");
        let refusal = found("*.bin").unwrap_err();
        assert!(refusal.ends_with("*.bin: no file fits this pattern"), "{refusal}");
        assert!(found("***").unwrap_err().contains("wildcards are either regular"));
    }
}

//! Wildcards in file names, if no shell has expanded them.

use std::fs::read_dir;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use glob::{MatchOptions, Pattern, glob_with};

/// Returns the paths themselves. A path that does not exist but is a pattern (`*`, `**`, `?`,
/// `[a-z]`) is replaced by its matches in the order of their names, except hidden ones and empty
/// files. `**` does not follow links to folders, which may be circular. It stands for files, unless
/// it only matches folders: a folder stands for all files in it.
///
/// # Errors
/// If a pattern is malformed, or matches nothing.
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
        let mut found = if pattern.contains("**") {
            fitting_below(pattern, options).with_context(named)?
        } else {
            let found = glob_with(pattern, options).with_context(named)?;
            found.collect::<Result<Vec<_>, _>>().with_context(named)?
        };
        ensure!(!found.is_empty(), "{pattern}: no file fits this pattern");
        found.retain(|path| path.metadata().map_or(true, |it| !it.is_file() || it.len() > 0));
        ensure!(!found.is_empty(), "{pattern}: all files that fit this pattern are empty");
        all.extend(found);
    }
    Ok(all)
}

/// Returns the files that match a pattern, in the order of names, below the folder where its
/// wildcards begin; the folders if there are no files.
fn fitting_below(pattern: &str, options: MatchOptions) -> Result<Vec<PathBuf>> {
    let fits = Pattern::new(pattern)?;
    let options = MatchOptions { require_literal_separator: true, ..options };
    let is_plain = |part: &&std::ffi::OsStr| !part.to_string_lossy().contains(['*', '?', '[']);
    let folder: PathBuf = Path::new(pattern).iter().take_while(is_plain).collect();
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    walk(&folder, &mut |path| {
        if fits.matches_path_with(path, options) {
            let found = if path.is_dir() { &mut folders } else { &mut files };
            found.push(path.to_path_buf());
        }
    })?;
    Ok(if files.is_empty() { folders } else { files })
}

/// Visits everything below a folder in the order of names, without following links to folders.
fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) -> io::Result<()> {
    let read = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut names = read_dir(read)?
        .map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, kind) in names {
        let path = folder.join(name);
        visit(&path);
        if kind.is_dir() {
            walk(&path, visit)?;
        }
    }
    Ok(())
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
        assert_eq!(found("**/*.txt").unwrap(), ["[x].txt", "a.txt", "b.txt", "deep/d.txt"]);
        std::os::unix::fs::symlink("..", at("deep/back")).unwrap();
        std::os::unix::fs::symlink("../a.txt", at("deep/link.txt")).unwrap();
        fs::write(at("deep/empty.txt"), "").unwrap();
        assert_eq!(found("**/deep/*.txt").unwrap(), ["deep/d.txt", "deep/link.txt"]);
        assert_eq!(found("deep/*.txt").unwrap(), ["deep/d.txt", "deep/link.txt"]);
        assert!(found("**/e*y.txt").unwrap_err().contains("are empty"));
        let all = ["[x].txt", "a.txt", "b.txt", "c.md", "deep/d.txt", "deep/link.txt"];
        assert_eq!(found("**").unwrap(), all, "each file once");
        assert_eq!(found("**/deep").unwrap(), ["deep"], "no file fits");
        assert_eq!(found("de?p").unwrap(), ["deep"], "a folder fits too");
        assert_eq!(found("[x].txt").unwrap(), ["[x].txt"], "a file of that name goes before");
        assert_eq!(found("none.txt").unwrap(), ["none.txt"], "who reads it refuses it");
        let refusal = found("*.bin").unwrap_err();
        assert!(refusal.ends_with("*.bin: no file fits this pattern"), "{refusal}");
        assert!(found("***").unwrap_err().contains("wildcards are either regular"));
    }
}

//! The drawings of every schedule in docs/gallery.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask::command::{files, root, run as run_command};
use xtask::features::default_chimera;

/// Draws the gallery, or only checks that the drawings are up to date.
pub(crate) fn run(check: bool) -> Result<()> {
    let fresh = tempfile::tempdir()?;
    let mut draw = Command::new(default_chimera()?);
    run_command(draw.args(["schedule", "gallery", "--out"]).arg(fresh.path()))?;
    let gallery = root().join("docs/gallery");
    let stale = differences(fresh.path(), &gallery)?;
    for name in &stale {
        eprintln!("docs/gallery/{} is not up to date", name.display());
    }
    match (stale.len(), check) {
        (0, _) => Ok(()),
        (n, true) => bail!("{n} drawings are not up to date; draw them: cargo xtask gallery"),
        (_, false) => stale.iter().try_for_each(|name| update(fresh.path(), &gallery, name)),
    }
}

/// Names of the files that differ between both folders.
fn differences(fresh: &Path, gallery: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut names = BTreeSet::new();
    for folder in [fresh, gallery].into_iter().filter(|folder| folder.exists()) {
        for file in files(folder)? {
            names.insert(file.strip_prefix(folder)?.to_path_buf());
        }
    }
    names.retain(|name| fs::read(fresh.join(name)).ok() != fs::read(gallery.join(name)).ok());
    Ok(names)
}

/// Copies one file of the gallery from `fresh`, or removes it if it is not there.
fn update(fresh: &Path, gallery: &Path, name: &Path) -> Result<()> {
    let (from, to) = (fresh.join(name), gallery.join(name));
    if !from.exists() {
        return fs::remove_file(&to).with_context(|| format!("removing {}", to.display()));
    }
    fs::create_dir_all(to.parent().unwrap_or(gallery))?;
    fs::copy(from, &to).with_context(|| format!("writing {}", to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_leaves_no_difference() {
        let (fresh, gallery) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (fresh, gallery) = (fresh.path(), gallery.path());
        fs::create_dir(fresh.join("in")).unwrap();
        for (file, text) in [
            (fresh.join("same"), "1"),
            (gallery.join("same"), "1"),
            (fresh.join("changed"), "2"),
            (gallery.join("changed"), "1"),
            (fresh.join("in/added"), "3"),
            (gallery.join("gone"), "4"),
        ] {
            fs::write(file, text).unwrap();
        }
        let names = differences(fresh, gallery).unwrap();
        assert_eq!(names, BTreeSet::from(["changed", "gone", "in/added"].map(PathBuf::from)));
        for name in names {
            update(fresh, gallery, &name).unwrap();
        }
        assert!(differences(fresh, gallery).unwrap().is_empty());
        assert!(!differences(fresh, &gallery.join("none")).unwrap().is_empty());
    }
}

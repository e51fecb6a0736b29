//! The files of the page of schedules: those of a folder, or those built into this program.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use anyhow::{Context, Result, bail};

/// Variable that names the folder of the page.
pub(super) const VARIABLE: &str = "CHIMERA_PAGE";
/// Folders in which the page is looked for, from the one with this program: beside it, where cargo
/// builds, and where packages install it.
const BESIDE: [&str; 3] = ["page", "../page", "../share/chimera/page"];
/// The file that a page begins with.
const INDEX: &str = "index.html";
/// The page that was built into this program, as paths and contents; empty in most builds.
const BUILT_IN: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// The place of a page's files.
pub(super) enum Page {
    /// A folder, without links.
    Folder(PathBuf),
    /// Paths and contents.
    Files(&'static [(&'static str, &'static [u8])]),
}

impl Page {
    /// Finds the page: in the named folder, built in, or beside this program.
    pub(super) fn find(named: Option<PathBuf>) -> Result<Page> {
        if let Some(folder) = named {
            return found(&folder).with_context(|| {
                format!("{} has no page: `cargo xtask page` makes one", folder.display())
            });
        }
        if !BUILT_IN.is_empty() {
            return Ok(Page::Files(BUILT_IN));
        }
        let program =
            env::current_exe().and_then(fs::canonicalize).context("where is this program?")?;
        let beside = |below: &&str| found(&program.parent()?.join(below)).ok();
        match BESIDE.iter().find_map(beside) {
            Some(page) => Ok(page),
            None => bail!(
                "there is no page beside {}: make it with `cargo xtask page`, or name its folder with --page or {VARIABLE}",
                program.display()
            ),
        }
    }

    /// Returns the path and the content of the file that a target of a request names, if it is one
    /// of the page.
    pub(super) fn file<'t>(&self, target: &'t str) -> Option<(&'t str, Cow<'static, [u8]>)> {
        let path = target.split(['?', '#']).next()?.strip_prefix('/')?;
        let path = if path.is_empty() { INDEX } else { path };
        let is_plain = |part: &str| {
            let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(is_known)
        };
        if !path.split('/').all(is_plain) {
            return None;
        }
        let content = match self {
            Page::Files(files) => {
                let (_, content) = files.iter().find(|(name, _)| *name == path)?;
                Cow::Borrowed(*content)
            }
            Page::Folder(folder) => {
                // A link may lead out of the folder.
                let file = fs::canonicalize(folder.join(path)).ok()?;
                let is_inside = file.starts_with(folder) && file.is_file();
                Cow::Owned(fs::read(file).ok().filter(|_| is_inside)?)
            }
        };
        Some((path, content))
    }
}

/// Returns the folder, without links, if a page is in it.
pub(super) fn found(folder: &Path) -> io::Result<Page> {
    let folder = fs::canonicalize(folder)?;
    fs::metadata(folder.join(INDEX)).map(|_| Page::Folder(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_page_is_refused_with_the_chore_that_makes_one() {
        let empty = tempfile::tempdir().unwrap();
        let refusal = Page::find(Some(empty.path().to_path_buf())).err().expect("a refusal");
        let refusal = refusal.to_string();
        assert!(refusal.ends_with("has no page: `cargo xtask page` makes one"), "{refusal}");
    }

    #[test]
    fn a_page_that_is_built_in_is_served_by_its_names_alone() {
        let page = Page::Files(&[("index.html", b"a page"), ("assets/a.js", b"code")]);
        let content = |target: &str| page.file(target).map(|(_, content)| content.into_owned());
        assert_eq!(content("/").as_deref(), Some(&b"a page"[..]));
        assert_eq!(content("/assets/a.js?x").as_deref(), Some(&b"code"[..]));
        for target in ["/none.js", "/assets", "/../Cargo.toml", ""] {
            assert_eq!(content(target), None, "{target}");
        }
    }
}

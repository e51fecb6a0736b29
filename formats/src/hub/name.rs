//! Names of models on a hub.

use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;

/// The revision of a name that gives none.
const MAIN: &str = "main";
/// The longest name of an organisation or a model, and twice that of a revision.
const MAX_BYTES: usize = 96;
/// The folder of a repository in a cache is called this, and its name with `--` for `/`.
const PREFIX: &str = "models--";

/// A model on a hub: `org/name`, `name@revision` or `org/name@revision`.
///
/// It has no characters that would lead out of the folders and addresses that it becomes a part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubName {
    repository: String,
    revision: String,
}

impl HubName {
    /// Reads a path as the name of a model, if it can be one. A plain `name` is only a folder: it
    /// needs a revision to be a model.
    pub fn of(path: &Path) -> Option<HubName> {
        path.to_str()?.parse().ok()
    }

    /// Returns the model whose folder `snapshots/<commit>` in a cache is `folder`.
    pub fn of_snapshot(folder: &Path) -> Option<HubName> {
        let mut parents = folder.components().rev().map(Component::as_os_str);
        let [commit, snapshots, repository] = [parents.next()?, parents.next()?, parents.next()?];
        let repository = repository.to_str()?.strip_prefix(PREFIX)?.replacen("--", "/", 1);
        let revision = commit.to_str().filter(|commit| is_commit(commit))?.to_string();
        let is_model = snapshots == "snapshots" && is_repository(&repository);
        is_model.then_some(HubName { repository, revision })
    }

    /// Returns the name without the revision.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the branch, the tag or the commit.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns true if the revision is a commit, which never changes.
    pub fn is_pinned(&self) -> bool {
        is_commit(&self.revision)
    }

    /// Returns the name of the folder in a cache, as `huggingface_hub` has it.
    pub(super) fn folder(&self) -> String {
        format!("{PREFIX}{}", self.repository.replace('/', "--"))
    }
}

impl FromStr for HubName {
    type Err = ();

    fn from_str(text: &str) -> Result<HubName, ()> {
        let (repository, revision) = match text.split_once('@') {
            Some((repository, revision)) => (repository, revision),
            None if text.contains('/') => (text, MAIN),
            None => return Err(()),
        };
        let is_name = is_repository(repository) && is_revision(revision);
        is_name
            .then(|| HubName { repository: repository.into(), revision: revision.into() })
            .ok_or(())
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HubName { repository, revision } = self;
        write!(f, "{repository}")?;
        if revision == MAIN && repository.contains('/') { Ok(()) } else { write!(f, "@{revision}") }
    }
}

/// Returns true for `name` and `org/name`, by the rules of the hub.
fn is_repository(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_edge = |c: char| matches!(c, '-' | '.');
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (1..=MAX_BYTES).contains(&part.len())
            && part.chars().all(allowed)
            && !part.starts_with(is_edge)
            && !part.ends_with(is_edge)
            && !part.contains("--")
            && !part.contains("..")
    };
    text.split('/').count() <= 2 && text.split('/').all(is_part)
}

/// Returns true for the name of a branch, a tag or a commit, such as `refs/pr/1`.
fn is_revision(text: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
        part.chars().all(allowed) && !part.is_empty() && !part.starts_with(['.', '-'])
    };
    text.len() <= 2 * MAX_BYTES && text.split('/').all(is_part)
}

/// Returns true for the hexadecimal name of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_folders() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        for (text, repository, revision) in [
            ("org/name", "org/name", "main"),
            ("gpt2@main", "gpt2", "main"),
            ("o-r.g/na_me@v1.0", "o-r.g/na_me", "v1.0"),
            ("org/name@refs/pr/1", "org/name", "refs/pr/1"),
            (&format!("org/name@{commit}"), "org/name", commit),
        ] {
            let name = HubName::of(Path::new(text)).expect(text);
            assert_eq!((name.repository(), name.revision()), (repository, revision));
            assert_eq!(name.to_string(), text);
        }
        for folder in [
            "model",
            "./org/name",
            "/org/name",
            "../name",
            "org/../name",
            "a/b/c",
            "org/",
            "org//name",
            "org/name@",
            "org/name@../x",
            "org/name@a//b",
            "org/name@-x",
            "org/na me",
            "a--b/c",
            ".a/b",
            "org\\name",
            "org/name@.",
            "@main",
            "C:/name",
        ] {
            assert_eq!(HubName::of(Path::new(folder)), None, "{folder}");
        }
    }

    #[test]
    fn a_snapshot_says_its_model() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        for repository in ["gpt2", "org/name"] {
            let name: HubName = format!("{repository}@{commit}").parse().unwrap();
            let folder = Path::new("/cache").join(name.folder()).join("snapshots").join(commit);
            assert_eq!(HubName::of_snapshot(&folder), Some(name));
        }
        let other = ["/cache/models--a--b/blobs", "models--a--b/snapshots/main", "a/snapshots/b"];
        for folder in other.map(|other| Path::new(other).join(commit)).into_iter().skip(1) {
            assert_eq!(HubName::of_snapshot(&folder), None);
        }
    }
}

//! The files of a model: they lie in its folder, and nowhere else.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Returns the path of the file `name` of the model in `dir`, or `None` if there is no such file.
///
/// # Errors
/// If the file cannot be looked up, or is a link out of the folder.
pub fn file_in(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let path = dir.join(name);
    match path.symlink_metadata() {
        Ok(_) => inside(dir, name).map(Some),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Returns the path of a file that another file names: it must be the plain name of a file in the folder. A
/// link out of the folder would let a model carry any file of this machine into an export. Links of the hub's
/// cache are allowed, where `snapshots/<revision>` links to `blobs`. Readers refuse anything but regular files.
pub(super) fn inside(dir: &Path, name: &str) -> Result<PathBuf> {
    let mut components = Path::new(name).components();
    let is_plain = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(only)), None) if only == name
    );
    ensure!(is_plain, "`{name}` is not the plain name of a file in this folder");
    let path = dir.join(name);
    let unread = || format!("cannot read {}", path.display());
    let real = path.canonicalize().with_context(unread)?;
    let folder = dir.canonicalize()?;
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.map(|snapshots| snapshots.with_file_name("blobs"));
    let is_inside = real.parent() == Some(&folder) || real.parent() == blobs.as_deref();
    ensure!(
        is_inside || !real.metadata().with_context(unread)?.is_file(),
        "{}: `{name}` is a link out of the folder: copy the file itself",
        dir.display()
    );
    Ok(path)
}

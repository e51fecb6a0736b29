//! Where commands write what others read: into a file, or to standard output as `-`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::cli::parts::terminal::console::{print, write_whole};

/// Whether a path stands for standard output.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Writes `text` into a file, and says so, or to standard output: without a name, or as `-`.
pub(crate) fn deliver(out: Option<&Path>, text: &str) -> Result<()> {
    let Some(out) = out.filter(|out| !is_standard_output(out)) else {
        return print(text);
    };
    write_whole(out, text)?;
    print(format!("wrote {}", out.display()))
}

/// Reads the name of a file or folder that is written beside what the command prints. Refuses `-`, in the place of which
/// a file of this name would be made.
pub(crate) fn written_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| if is_standard_output(&path) {
Err("this cannot go to standard output: name a file or folder (`./-` is one that is called so)")
} else {
Ok(path)
})
}

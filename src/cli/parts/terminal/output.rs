//! Output for other programs: to a file, or with `-` to standard output.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::cli::parts::terminal::console::{print, write_whole};

/// Returns true if a path stands for standard output.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Writes `text` to a file and prints its name. Without a name, or with `-`, writes to standard
/// output.
pub(crate) fn deliver(out: Option<&Path>, text: &str) -> Result<()> {
    let Some(out) = out.filter(|out| !is_standard_output(out)) else {
        return print(text);
    };
    write_whole(out, text)?;
    print(format!("wrote {}", out.display()))
}

/// Parses the path of a file or folder that is written in addition to the command's output. Refuses
/// `-`, since a file of this name would be created.
pub(crate) fn written_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| if is_standard_output(&path) {
Err("this cannot go to standard output: name a file or folder (`./-` is one that is called so)")
} else {
Ok(path)
})
}

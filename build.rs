//! Puts the project's documents and sources together into the default training text.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Files, and folders whose files of this kind are taken; what is not there is left out.
const SOURCES: [(&str, &str); 8] = [
    ("README.md", "md"),
    ("ARCHITECTURE.md", "md"),
    ("CHANGELOG.md", "md"),
    ("docs", "md"),
    ("src", "rs"),
    ("chimera-core/src", "rs"),
    ("backend-cuda/src", "rs"),
    ("xtask/src", "rs"),
];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
    let mut text = String::new();
    for (source, extension) in SOURCES {
        let path = root.join(source);
        if path.exists() {
            println!("cargo::rerun-if-changed={source}");
            append(&path, extension, &mut text)?;
        }
    }
    fs::write(out.join("corpus.txt"), text)
}

/// Appends the files of one kind below `path`, sorted, so that every build has the same text.
fn append(path: &Path, extension: &str, text: &mut String) -> io::Result<()> {
    if path.is_dir() {
        let mut inside: Vec<_> =
            fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        inside.sort();
        return inside.iter().try_for_each(|path| append(path, extension, text));
    }
    if path.extension().is_some_and(|e| e == extension) {
        text.push_str(&String::from_utf8_lossy(&fs::read(path)?));
        text.push('\n');
    }
    Ok(())
}

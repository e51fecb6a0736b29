//! Puts the page of schedules into the command if `CHIMERA_EMBED_PAGE` names its folder, as
//! `cargo xtask release` does.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const VARIABLE: &str = "CHIMERA_EMBED_PAGE";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let mut rows = String::new();
    if let Some(folder) = env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        let folder = fs::canonicalize(folder)?;
        println!("cargo::rerun-if-changed={}", folder.display());
        add(&mut rows, &folder, "")?;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("page.rs"), format!("&[{rows}]"))
}

/// Adds a row for each file below a folder: its path there, and its content.
fn add(rows: &mut String, folder: &Path, below: &str) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (name, path) = (format!("{below}{}", entry.file_name().display()), entry.path());
        if path.is_dir() {
            add(rows, &path, &format!("{name}/"))?;
        } else {
            let _ = write!(rows, "({name:?}, include_bytes!({path:?}) as &[u8]), ");
        }
    }
    Ok(())
}

//! CUDA libraries from Python packages, and the search paths for them.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use xtask::command::{environment, run, target};

/// Installs Python packages into a folder of their own.
pub(crate) fn install(site: &Path, packages: &[&str]) -> Result<()> {
    let python = environment(&target()?.join("cuda/python"))?;
    // Each at its own version: a resolver would mix several toolkits.
    let options = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"];
    run(Command::new(python).args(options).arg(site).args(packages))
}

/// Puts `folders` before the current library search path.
pub(crate) fn search_path(folders: &[PathBuf]) -> Result<OsString> {
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths: Vec<_> =
        env::split_paths(&before).filter(|path| !path.as_os_str().is_empty()).collect();
    Ok(env::join_paths(folders.iter().chain(&paths))?)
}

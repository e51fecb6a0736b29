//! The real NCCL: its library must have all functions that the transport looks up. It needs no GPU.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::suites::cuda_packages::install;
use xtask::command::{cargo, files, run, target};

/// The first version that lets several ranks share a GPU.
const NCCL: &str = "nvidia-nccl-cu13==2.30.7";

/// Opens the library at `path`, or one from the package index.
pub(crate) fn check(path: Option<PathBuf>) -> Result<()> {
    let library = match path {
        Some(path) => path,
        None => library()?,
    };
    let options =
        ["run", "--quiet", "--package", "chimera-comm-nccl", "--example", "version", "--"];
    run(cargo(options).arg(library))
}

/// The library of NCCL's package, in target/cuda.
pub(crate) fn library() -> Result<PathBuf> {
    // in a folder of its own: pip replaces the folder that packages share
    let site = target()?.join("cuda/nccl");
    install(&site, &[NCCL])?;
    let found = files(&site)?.into_iter().find(|file| file.ends_with("libnccl.so.2"));
    found.context("the package of NCCL has no libnccl.so.2")
}

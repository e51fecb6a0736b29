//! What needs Vulkan: the conformance of the portable backend, under validation layers too, and training on
//! it, by threads and by ranks under mpirun. Where there is no GPU a software Vulkan serves; where there is no
//! Vulkan at all the chore fails.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{install, run as run_command};
use crate::features::{PROGRAM, Tests, lint};
use crate::mpi_library::open_mpi;
use crate::suites::mpi;

/// Debian's software Vulkan, its loader, and the layers that check how it is used.
const PACKAGES: [&str; 3] = ["mesa-vulkan-drivers", "libvulkan1", "vulkan-validationlayers"];
/// Where drivers and layers of Vulkan are described.
const FOLDERS: [&str; 3] = ["/etc/vulkan", "/usr/local/share/vulkan", "/usr/share/vulkan"];

/// The layer that checks how Vulkan is used.
const LAYER: &str = "explicit_layer.d/VkLayer_khronos_validation.json";

/// Lints and tests all that has the feature `wgpu`.
pub(crate) fn run() -> Result<()> {
    needs()?;
    let quiet = tempfile::tempdir()?; // without such a folder Mesa complains
    lint("chimera-pipeline/wgpu", None)?;
    let (compiler, launcher) = open_mpi()?;
    let tests = Tests::build(&compiler)?;
    let quietly = |mut test: Command| {
        test.envs([("XDG_RUNTIME_DIR", quiet.path()), ("XDG_CACHE_HOME", quiet.path())]);
        run_command(&mut test)
    };
    for target in ["chimera_backend_wgpu", "conformance", "limits", "staged", "validation"] {
        quietly(tests.command("backend-wgpu", target)?)?;
    }
    quietly(tests.command(PROGRAM, "wgpu")?)?;
    let mut ranks = tests.command(PROGRAM, "mpi")?;
    ranks.arg(mpi::ADAPTERS).env("MPIRUN", &launcher);
    quietly(ranks)
}

/// Installs Vulkan where Debian's packages are.
pub(crate) fn needs() -> Result<()> {
    let is_there = ["icd.d", LAYER].into_iter().all(has);
    if !cfg!(target_os = "linux") || is_there {
        return Ok(());
    }
    install(&PACKAGES).context("Vulkan, or its validation layers, are missing")
}

/// Whether there is such a file, or a folder that is not empty.
fn has(name: &str) -> bool {
    FOLDERS.iter().map(|folder| Path::new(folder).join(name)).any(|path| match path.read_dir() {
        Ok(mut files) => files.next().is_some(),
        Err(_) => path.exists(),
    })
}

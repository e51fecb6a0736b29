//! Tests that need Vulkan: the conformance of the portable backend, also under validation layers,
//! and training on it, with threads and with ranks under mpirun. Without a GPU they run on a
//! software Vulkan; without any Vulkan the chore fails.

use std::process::Command;

use anyhow::Result;

use crate::suites::mpi;
use xtask::command::run as run_command;
use xtask::features::{PROGRAM, Tests, lint};
use xtask::mpi_library::open_mpi;
use xtask::vulkan;

/// Lints and tests everything with the feature `wgpu`.
pub(crate) fn run() -> Result<()> {
    vulkan::needs()?;
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

//! The crate in `tests/beside_candle`, not a member of the workspace: a program with candle's CUDA
//! and Chimera's, tests of tensors that go from one to the other, and of stages that candle trains.
//! Building candle's CUDA needs a whole toolkit of 1.4 GB, which is downloaded if there is none.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::suites::cuda_packages::{install, search_path};
use xtask::command::{cargo, files, program, read, root, run as run_command, target};

/// The toolkit as Python packages. Compiler, its parts and its headers must have one version: a
/// resolver would mix several.
const TOOLKIT: [&str; 8] = [
    "nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88",
    "nvidia-cuda-cccl==13.0.85", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cublas==13.1.0.3", "nvidia-curand==10.4.0.35",
];
/// The chip that candle's kernels are compiled for.
const CHIP: &str = "90";

/// Lints, builds and starts the program, and runs its tests on emulated GPUs. None of it needs a
/// real one.
pub(crate) fn run() -> Result<()> {
    let (home, is_ours) = match env::var_os("CUDA_HOME").filter(|home| !home.is_empty()) {
        Some(home) => (PathBuf::from(home), false),
        None => (toolkit()?, true),
    };
    let builds = target()?.join("cuda/beside_candle");
    let tools = env::join_paths(
        [home.join("bin")]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    let mut folders = vec![home.join("lib64")];
    if is_ours {
        // the program links a driver, and the packages have none
        folders.push(home.join("lib64/stubs"));
    }
    let libraries = search_path(&folders)?;
    let manifest = root().join("tests/beside_candle/Cargo.toml");
    let on_crate = |subcommand: &str| {
        let mut command = cargo([subcommand, "--locked", "--manifest-path"]);
        command.arg(&manifest).env("CUDA_HOME", &home).env("PATH", &tools);
        command.env("CUDA_COMPUTE_CAP", CHIP).env("CARGO_TARGET_DIR", &builds);
        command.env("LD_LIBRARY_PATH", &libraries);
        command
    };
    run_command(cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    run_command(&mut on_crate("build"))?;
    let mut start = Command::new(builds.join("debug").join(program("beside_candle")));
    let said = read(start.env("LD_LIBRARY_PATH", &libraries))?;
    println!("{}", said.trim_end());
    ensure!(said.contains("NVRTC 13.") && said.contains("cuBLAS 13."), "it finds no libraries");
    run_command(on_crate("clippy").args(["--all-targets", "--", "-D", "warnings"]))?;
    run_command(&mut on_crate("test"))
}

/// The toolkit in target/cuda, laid out as programs expect it at `CUDA_HOME`.
fn toolkit() -> Result<PathBuf> {
    let site = target()?.join("cuda/toolkit");
    let home = site.join("nvidia/cu13");
    if home.join("lib64/stubs/libcuda.so.1").exists() {
        return Ok(home);
    }
    install(&site, &TOOLKIT)?;
    let lib = home.join("lib");
    for library in files(&lib)? {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some((stem, _)) = name.split_once(".so.").filter(|(stem, _)| stem.starts_with("lib"))
        {
            link(&name, &lib.join(format!("{stem}.so")))?;
        }
    }
    link("lib", &home.join("lib64"))?;
    stub(&home)?;
    Ok(home)
}

/// Links `to` to a name beside it, if that does not exist yet.
fn link(name: &str, to: &Path) -> Result<()> {
    if to.exists() {
        return Ok(());
    }
    run_command(Command::new("ln").args(["-sfn", name]).arg(to))
}

/// A driver whose functions all report that there is no GPU, so that programs link and start
/// without a real one.
fn stub(home: &Path) -> Result<()> {
    let header = home.join("include/cuda.h");
    let text = fs::read_to_string(&header).with_context(|| header.display().to_string())?;
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_function = |word: &&str| {
        word.strip_prefix("cu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    let mut names: Vec<_> = words.filter(is_function).collect();
    names.sort_unstable();
    names.dedup();
    const NO_DEVICE: u32 = 100;
    let functions =
        names.iter().map(|name| format!("int {name}(void) {{ return {NO_DEVICE}; }}\n"));
    let stubs = home.join("lib/stubs");
    fs::create_dir_all(&stubs)?;
    let source = stubs.join("stub.c");
    fs::write(&source, functions.collect::<String>())?;
    let library = stubs.join("libcuda.so");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&library);
    run_command(compile.arg(&source))?;
    link("libcuda.so", &stubs.join("libcuda.so.1"))
}

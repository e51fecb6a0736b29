//! NVIDIA GPUs: the program for them, its kernels compiled without one, and its test on one.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{cargo, files, root, run};

/// What compiles kernels, and the matrix products: as one toolkit has them.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.88";
const CUBLAS: &str = "nvidia-cublas==13.1.0.3";

/// Ampere and Hopper.
const CHIPS: [&str; 2] = ["sm_80", "sm_90"];

/// For which GPUs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Chips that the kernels are compiled for, to see that they can be
    #[arg(long = "chip", value_name = "NAME", default_values = CHIPS)]
    chips: Vec<String>,
    /// Only lints, tests and compiles what needs no GPU
    #[arg(long)]
    check: bool,
}

/// What can be known of the feature `cuda` without a GPU.
pub(crate) fn check() -> Result<()> {
    let features = ["--features", "chimera/cuda", "--package", "chimera", "--package"];
    let features = [&features[..], &["chimera-backend-cuda", "--all-targets"]].concat();
    run(&mut cargo([&["clippy"], &features[..], &["--", "-D", "warnings"]].concat()))?;
    let backend = ["--package", "chimera-backend-cuda", "--features", "cuda", "--lib"];
    run(&mut cargo([&["test"], &backend[..]].concat()))?;
    compile(&CHIPS.map(str::to_string))
}

/// Checks, or compiles the kernels for every chip and builds the command in target/cuda.
pub(crate) fn build(args: &Args) -> Result<()> {
    if args.check {
        return check();
    }
    compile(&args.chips)?;
    println!("built {}", chimera()?.display());
    Ok(())
}

/// Compiles the kernels by NVRTC.
fn compile(chips: &[String]) -> Result<()> {
    let libraries = libraries(&[NVRTC])?;
    let options = ["run", "--quiet", "--package", "chimera-backend-cuda", "--features", "cuda"];
    let mut compile = cargo(options);
    compile.args(["--example", "compile", "--"]).args(chips);
    run(compile.env("LD_LIBRARY_PATH", search_path(&libraries)?))
}

/// Tests and measures the first GPU of this machine.
pub(crate) fn test(json: &Path) -> Result<()> {
    let libraries = libraries(&[NVRTC, CUBLAS])?;
    let mut selftest = Command::new(chimera()?);
    selftest.args(["selftest", "--device", "cuda", "--json"]).arg(json);
    run(selftest.env("LD_LIBRARY_PATH", search_path(&libraries)?))
}

/// The release command with CUDA.
fn chimera() -> Result<PathBuf> {
    let target = root().join("target/cuda");
    let mut build = cargo(["build", "--release", "--package", "chimera", "--bin", "chimera"]);
    run(build.args(["--features", "cuda", "--target-dir"]).arg(&target))?;
    Ok(target.join("release").join(format!("chimera{}", env::consts::EXE_SUFFIX)))
}

/// The folder of the libraries: of the toolkit at CUDA_HOME, or of these packages in target/cuda.
fn libraries(packages: &[&str]) -> Result<PathBuf> {
    if let Some(home) = env::var_os("CUDA_HOME").filter(|home| !home.is_empty()) {
        let folders = ["lib64", "lib"].map(|name| Path::new(&home).join(name));
        let found = folders.into_iter().find(|folder| folder.is_dir());
        return found.with_context(|| format!("CUDA_HOME={} has no lib64", home.display()));
    }
    let (environment, site) = (root().join("target/cuda/python"), root().join("target/cuda/site"));
    let python = environment.join("bin/python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    }
    // Each at its own version: a resolver would mix those of several toolkits.
    let options = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"];
    run(Command::new(python).args(options).arg(&site).args(packages))?;
    let is_nvrtc = |file: &PathBuf| file.ends_with("libnvrtc.so.13");
    let nvrtc = files(&site)?.into_iter().find(is_nvrtc);
    let folder = nvrtc.as_deref().and_then(Path::parent);
    Ok(folder.context("the package of NVRTC has no libnvrtc.so.13")?.to_path_buf())
}

/// `folder` before what is searched already.
fn search_path(folder: &Path) -> Result<OsString> {
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths = env::split_paths(&before).filter(|path| !path.as_os_str().is_empty());
    Ok(env::join_paths([folder.to_path_buf()].into_iter().chain(paths))?)
}

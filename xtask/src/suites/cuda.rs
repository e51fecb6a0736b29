//! NVIDIA GPUs: the program for them, its kernels compiled without one, and its test on one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::suites::cuda_packages::{install, search_path};
use crate::suites::{beside_candle, nccl};
use xtask::command::{cargo, files, program, read, run, target};
use xtask::features::{PROGRAM, Tests, lint};
use xtask::mpi_library::open_mpi;

/// The compiler of kernels and the library of matrix products, of the same toolkit.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.88";
const CUBLAS: &str = "nvidia-cublas==13.1.0.3";

/// Size limit of the program, which is copied to machines with GPUs.
const MOST_BYTES: u64 = 64 << 20;

/// The architectures Ampere and Hopper.
const CHIPS: [&str; 2] = ["sm_80", "sm_90"];

/// The options of the chore.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Chips to compile the kernels for, to check that they compile
    #[arg(long = "chip", value_name = "NAME", default_values = CHIPS)]
    chips: Vec<String>,
    /// Only lints, tests on emulated GPUs, and compiles what needs no GPU
    #[arg(long)]
    check: bool,
    /// Only builds and tests the part with candle's CUDA, with a toolkit of 1.4 GB if CUDA_HOME
    /// names none
    #[arg(long, conflicts_with = "check")]
    beside_candle: bool,
}

/// Checks the features `cuda` and `nccl` without a GPU: lints, tests on emulated GPUs, and kernels compiled for real
/// ones.
pub(crate) fn check() -> Result<()> {
    let (compiler, launcher) = open_mpi()?;
    for features in ["chimera-pipeline/cuda", "chimera-pipeline/nccl,chimera-comm-nccl/cuda"] {
        lint(features, None)?;
    }
    lint("chimera-pipeline/nccl,chimera-pipeline/mpi", Some(&compiler))?;
    let tests = Tests::build(&compiler)?;
    // for kernels, which must not go into the user's cache
    let cache = target()?.join("cuda/emulated");
    let emulated = [
        ("backend-cuda", "chimera_backend_cuda"),
        ("backend-cuda", "emulated_gpu"),
        ("comm-nccl", "chimera_comm_nccl"),
        ("comm-nccl", "emulated_nccl"),
        (PROGRAM, "cuda"),
    ];
    for (folder, target) in emulated {
        let mut test = tests.command(folder, target)?;
        run(test.env("XDG_CACHE_HOME", &cache).env("MPIRUN", &launcher))?;
    }
    compile(Command::new(tests.program("backend-cuda", "compile")?), &CHIPS.map(str::to_string))
}

/// Checks, or compiles the kernels for every chip and builds the command in target/cuda.
pub(crate) fn build(args: &Args) -> Result<()> {
    if args.check {
        return check();
    }
    if args.beside_candle {
        return beside_candle::run();
    }
    let options = ["run", "--quiet", "--package", "chimera-backend-cuda", "--features", "cuda"];
    let mut compiler = cargo(options);
    compiler.args(["--example", "compile", "--"]);
    compile(compiler, &args.chips)?;
    let program = chimera()?;
    let bytes = program.metadata()?.len();
    println!("built {}, {:.1} MiB", program.display(), bytes as f64 / f64::from(1 << 20));
    ensure!(bytes <= MOST_BYTES, "the program is too large to carry about");
    // It starts without CUDA, and reports what it lacks.
    run(Command::new(program).arg("devices"))
}

/// Compiles the kernels with NVRTC, using the example for it.
fn compile(mut example: Command, chips: &[String]) -> Result<()> {
    let libraries = libraries(&[NVRTC])?;
    example.args(chips).env("LD_LIBRARY_PATH", search_path(&[libraries])?);
    let said = read(&mut example)?;
    print!("{said}");
    let is_missing = |chip: &&String| !said.contains(&format!("{chip}, Bf16: "));
    let missing = chips.iter().find(is_missing);
    missing.map_or(Ok(()), |chip| bail!("nothing was compiled for {chip}"))
}

/// The options for a test of the first GPU of this machine.
#[derive(clap::Args)]
pub(crate) struct Test {
    /// File for the results
    #[arg(long, value_name = "FILE", default_value = "gpu.json")]
    json: PathBuf,
    /// Runs every kernel under the tools of compute-sanitizer instead, which comes with CUDA's toolkit
    #[arg(long)]
    sanitize: bool,
}

/// Tools of compute-sanitizer: accesses outside of memory, races, barriers, and reads of
/// uninitialized memory.
const SANITIZERS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];

/// Tests and measures the first GPU of this machine.
pub(crate) fn test(args: &Test) -> Result<()> {
    let nccl = nccl::library()?;
    let folders = [libraries(&[NVRTC, CUBLAS])?, nccl.parent().unwrap_or(&nccl).to_path_buf()];
    let (chimera, path) = (chimera()?, search_path(&folders)?);
    if args.sanitize {
        return SANITIZERS.into_iter().try_for_each(|tool| {
            let mut sanitizer = Command::new("compute-sanitizer");
            sanitizer.args(["--tool", tool, "--error-exitcode", "9"]).arg(&chimera);
            sanitizer.args(["selftest", "--device", "cuda", "--part", "kernels"]);
            run(sanitizer.env("LD_LIBRARY_PATH", &path))
        });
    }
    let mut selftest = Command::new(chimera);
    selftest.args(["selftest", "--device", "cuda", "--json"]).arg(&args.json);
    selftest.envs([("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_MAX_CTAS", "2")]); // several ranks on the one GPU
    run(selftest.env("LD_LIBRARY_PATH", path))
}

/// The release command with CUDA and NCCL, without symbols.
fn chimera() -> Result<PathBuf> {
    let target = target()?.join("cuda");
    let mut build =
        cargo(["build", "--release", "--package", "chimera-pipeline", "--bin", "chimera"]);
    build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    run(build.args(["--features", "nccl", "--target-dir"]).arg(&target))?;
    Ok(target.join("release").join(program("chimera")))
}

/// The folder of the libraries: of the toolkit at CUDA_HOME, or of these packages in target/cuda.
fn libraries(packages: &[&str]) -> Result<PathBuf> {
    if let Some(home) = env::var_os("CUDA_HOME").filter(|home| !home.is_empty()) {
        let folders = ["lib64", "lib"].map(|name| Path::new(&home).join(name));
        let found = folders.into_iter().find(|folder| folder.is_dir());
        return found.with_context(|| format!("CUDA_HOME={} has no lib64", home.display()));
    }
    let site = target()?.join("cuda/site");
    install(&site, packages)?;
    let is_nvrtc = |file: &PathBuf| file.ends_with("libnvrtc.so.13");
    let nvrtc = files(&site)?.into_iter().find(is_nvrtc);
    let folder = nvrtc.as_deref().and_then(Path::parent);
    Ok(folder.context("the package of NVRTC has no libnvrtc.so.13")?.to_path_buf())
}

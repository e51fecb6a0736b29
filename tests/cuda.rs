//! Training on CUDA GPUs that are emulated below the driver's interface: everything except speed.
//! `cargo xtask cuda --check` runs it.

#[path = "../backend-cuda/tests/emulated/libraries.rs"]
mod libraries;

mod command;
#[cfg(all(feature = "nccl", feature = "mpi", unix))]
#[path = "command/launcher.rs"]
mod launcher;
#[path = "cuda/profile.rs"]
mod profile;

use std::fs::{copy, create_dir_all, read, read_dir, read_to_string, write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use command::{Ran, chimera, folder, start_with, text};

const MODEL: &str = "--layers 4 --hidden 16 --heads 2 --context 8 --micro-batch-size 2 --micro-batches 4 --threads 1 \
                     --depth 4 --optimizer adamw --lr-schedule cosine";

/// Grouped heads, biases, and a window shorter than the context.
const LLAMA: &str = "--model llama --kv-heads 1 --qkv-bias --sliding-window 5";

const CHIMERA: &str = env!("CARGO_BIN_EXE_chimera");

/// The folder of the emulated libraries.
fn emulated() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| libraries::folder(Path::new(env!("CARGO_TARGET_TMPDIR"))))
}

/// A command that finds the emulated libraries, with these settings for them.
fn with_gpus(mut command: Command, settings: &[(&str, &str)]) -> Command {
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths = [emulated().into()].into_iter().chain(std::env::split_paths(&before));
    command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).expect("paths"));
    command.env("XDG_CACHE_HOME", emulated().join("cache")).env_remove("CUDA_MODULE_LOADING");
    command.envs(settings.iter().copied());
    command
}

fn on_gpus(settings: &[(&str, &str)], line: &str) -> Ran {
    start_with(with_gpus(Command::new(CHIMERA), settings), line).wait()
}

/// A finished training.
struct Trained {
    folder: TempDir,
    ran: Ran,
}

fn train(options: &str, chimera: impl Fn(&str) -> Ran) -> Trained {
    let folder = folder();
    let ran = chimera(&line(&folder, options));
    Trained { folder, ran }
}

fn train_on_gpus(settings: &[(&str, &str)], options: &str) -> Trained {
    train(options, |line| on_gpus(settings, line))
}

fn line(folder: &TempDir, options: &str) -> String {
    let (data, out) = (ids(folder), folder.path().join("run"));
    let usual = [("--depth", 4), ("--steps", 3)].into_iter();
    let usual = usual.filter(|(name, _)| !options.contains(name));
    let usual: String = usual.map(|(name, value)| format!("{name} {value} ")).collect();
    format!("train {MODEL} {usual} --data {} --out {} {options}", data.display(), out.display())
}

/// A few token ids, not of a known text. So little is evaluated at the end of a run and nothing is
/// generated, which would take the emulated GPU longer than the steps.
fn ids(folder: &TempDir) -> PathBuf {
    let ids = read(text(folder)).expect("a text").into_iter().take(600);
    let path = folder.path().join("ids.bin");
    write(&path, ids.flat_map(|id| u16::from(id).to_le_bytes()).collect::<Vec<_>>())
        .expect("a file");
    path
}

impl Trained {
    /// The metrics of its steps.
    fn steps(&self) -> Vec<Value> {
        assert_eq!(self.ran.code, Some(0), "{}", self.ran.stderr);
        let text = read_to_string(self.folder.path().join("run/metrics.jsonl")).expect("metrics");
        text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
    }

    fn numbers(&self, key: &str) -> Vec<f64> {
        self.steps().iter().map(|step| step[key].as_f64().expect("a number")).collect()
    }
}

/// Checks that losses and norms are those of the CPU. Work runs as late as possible, and then in
/// random orders.
fn compare(options: &str, tolerance: f64) {
    let on_cpu = options.replace("--precision bf16", "").replace("--precision tf32", "");
    let cpu = train(&on_cpu, chimera);
    let devices = ["cuda:0", "cuda", "cuda:1,cuda:0,cuda:0,cuda:1"];
    for (seed, device) in ["0", "1", "2"].iter().zip(devices) {
        let options = format!("{options} --device {device}");
        let gpu = train_on_gpus(&[("EMULATED_SEED", *seed)], &options);
        for key in ["loss", "grad_norm"] {
            let (is, should) = (gpu.numbers(key), cpu.numbers(key));
            assert_eq!(is.len(), 3);
            let pairs = is.iter().zip(&should);
            let error = pairs.map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
            assert!(error < tolerance, "{options}: {key} {is:?} are not {should:?}");
        }
    }
}

#[test]
fn schedules_train_as_on_the_cpu() {
    compare("--schedule chimera", 1e-4);
    compare("--schedule zb-h1 --tied --optimizer lamb", 1e-4);
    compare("--schedule chimera --recompute full --optimizer sgd --shard-optimizer", 1e-4);
    compare("--schedule 1f1b --model bert --recompute selective --dropout 0.1", 1e-4);
    compare(&format!("--schedule zb-h1 {LLAMA} --tied --clip 0.5"), 1e-4);
    compare(&format!("--schedule chimera {LLAMA} --recompute selective --dropout 0.1"), 1e-4);
}

#[test]
fn bf16_trains_beside_the_cpu() {
    compare("--schedule chimera --precision bf16", 2e-2);
    compare(&format!("--schedule 1f1b --precision bf16 {LLAMA}"), 2e-2);
}

#[test]
fn tf32_trains_beside_the_cpu() {
    // At the default rate of so narrow a model, the first updates enlarge rounding errors tenfold.
    compare("--schedule chimera --precision tf32 --lr 0.001", 1e-3);
    let ran = chimera("train --precision tf32");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("choose f32"), "{}", ran.stderr);
    let ran = chimera("train --reduce-precision tf32");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("must be one of f32, bf16"), "{}", ran.stderr);
}

/// A step waits once for each worker, and allocates nothing new from the driver.
#[test]
fn a_steady_step_neither_waits_nor_allocates() {
    for pools in ["1", "0"] {
        let folder = folder();
        let json = folder.path().join("found.json");
        let options = format!("--size small --part steps --json {}", json.display());
        let settings = [("EMULATED_POOLS", pools), ("EMULATED_EAGER", "0")];
        let ran = on_gpus(&settings, &format!("selftest --device cuda {options}"));
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        let found = read_to_string(json).expect("a file");
        let found: Value = serde_json::from_str(&found).expect("JSON");
        let measured = found["measurements"].as_array().expect("measurements");
        let values = |part: &str| -> Vec<f64> {
            let of =
                measured.iter().filter(|m| m["what"].as_str().is_some_and(|w| w.contains(part)));
            of.map(|m| m["value"].as_f64().expect("a number")).collect()
        };
        assert_eq!(values("waits"), [1.0, 4.0, 4.0].repeat(3)); // bf16, tf32, f32
        let growths = values("growth in a second run");
        assert!(growths.len() == 9 && growths.iter().all(|growth| *growth < 5.0), "{growths:?}");
        let timed = values("all launches of a micro-batch");
        assert!(timed.len() == 3 && timed.iter().all(|ms| *ms > 0.0), "{timed:?}");
    }
}

/// The self-test compares attention on tensor cores with the generic one on the same GPU.
#[test]
fn attention_is_compared_on_the_gpu() {
    let ran = on_gpus(&[], "selftest --device cuda --size small --part values");
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    for part in ["results", "gradients"] {
        for heads in ["2 heads of 64", "1 heads of 128"] {
            let line = format!("{part} of attention of 1 x 200 x {heads}, bf16");
            assert!(ran.stdout.contains(&line), "{line} is not in\n{}", ran.stdout);
        }
    }
}

#[test]
fn older_gpus_have_no_bf16() {
    let settings = [("EMULATED_CAPABILITY", "75")];
    let ran = on_gpus(&settings, "train --device cuda --precision bf16");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("sm_75"), "{}", ran.stderr);
    assert!(ran.stderr.contains("choose --precision f32"), "{}", ran.stderr);
    let ran = on_gpus(&settings, "devices");
    assert!(ran.stdout.contains("sm_75; kernels in f32 alone"), "{}", ran.stdout);
    train_on_gpus(&settings, "--device cuda").steps();
}

#[test]
fn a_step_lasts_until_its_device_is_done() {
    let pause = [("EMULATED_PAUSE", "300")];
    let trained = train_on_gpus(&pause, "--device cuda:0 --depth 2");
    // Of several hundred kernels in a step.
    let seconds = trained.numbers("step_s");
    assert!(seconds.iter().all(|s| *s > 0.06), "{seconds:?}");
}

#[test]
fn memory_that_runs_out_is_accounted_for() {
    let Trained { folder, ran } =
        train_on_gpus(&[("EMULATED_ALLOCATIONS", "2000")], "--device cuda:0");
    assert_eq!(ran.code, Some(8), "{}", ran.stderr);
    for word in
        ["bytes asked", "weights", "gradients", "moments", "saved activations", "recompute full"]
    {
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    let files = read_dir(folder.path().join("run")).expect("a folder").flatten();
    let is_error = |name: String| name.starts_with("error.");
    assert_eq!(files.filter(|f| is_error(f.file_name().to_string_lossy().into())).count(), 1);
}

#[test]
fn a_run_goes_on_elsewhere() {
    let folder = folder();
    let options = "--lr-schedule constant --warmup 1 --save-every 1 --resume auto";
    let train = |steps: u32, device: &str| {
        let options = format!("{options} --steps {steps} --device {device}");
        let ran = on_gpus(&[], &line(&folder, &options));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    train(2, "cuda");
    assert!(train(3, "cpu").contains("step 2 is next"));
    assert!(train(4, "cuda:1").contains("step 3 is next"));
}

#[test]
fn what_is_missing_is_named() {
    let folder = folder();
    let refused = |libraries: &[&str], settings: &[(&str, &str)], told: &str| {
        let there = folder.path().join(libraries.join("-"));
        create_dir_all(&there).expect("a folder");
        for name in libraries {
            copy(emulated().join(name), there.join(name)).expect("a copy");
        }
        let ran = start_with(with_libraries(&there, settings), "train --device cuda").wait();
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    };
    let all = ["libcuda.so", "libnvrtc.so", "libcublasLt.so"];
    refused(&all, &[("EMULATED_CUDA", "12")], "this program needs NVRTC of CUDA 13");
    refused(&all[..1], &[], "libnvrtc.so.13 is not found");
    refused(&all[..2], &[], "libcublasLt.so.13 is not found");
    refused(&all, &[("EMULATED_GPUS", "0")], "no GPU that CUDA can use");
    let ran = on_gpus(&[], "train --device cuda:7");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("this machine has 2 GPU(s)"), "{}", ran.stderr);
}

/// A command for which the loader searches only this folder, and which knows no toolkit.
fn with_libraries(folder: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = with_gpus(Command::new(CHIMERA), &[]);
    for name in ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "VIRTUAL_ENV"] {
        command.env_remove(name);
    }
    command.env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
    command
}

/// Libraries that the loader does not find are looked for in a toolkit and in Python's packages.
#[test]
fn libraries_are_found_where_the_environment_says() {
    let folder = folder();
    let place = |below: &str, from: &str, name: &str| {
        let there = folder.path().join(below);
        create_dir_all(&there).expect("a folder");
        copy(emulated().join(from), there.join(name)).expect("a copy");
    };
    place("driver", "libcuda.so", "libcuda.so");
    let packages = "python/lib/python3.11/site-packages/nvidia/cu13/lib";
    place(packages, "libnvrtc.so", "libnvrtc.so.13");
    place("cuda/lib64", "libcublasLt.so", "libcublasLt.so.13");
    let [toolkit, python] = ["cuda", "python"].map(|name| folder.path().join(name));
    let settings = [("CUDA_HOME", text_of(&toolkit)), ("VIRTUAL_ENV", text_of(&python))];
    let ran =
        start_with(with_libraries(&folder.path().join("driver"), &settings), "devices").wait();
    for part in ["cuda: NVRTC 13.", "cuBLAS 13.0.0"] {
        assert!(ran.stdout.contains(part), "{part} is not in\n{}", ran.stdout);
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

#[test]
fn devices_lists_what_device_names() {
    let ran = on_gpus(&[], "devices");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["cuda:0: emulated GPU, 1.0 GiB, sm_90", "cuda:1: ", "cuBLAS 13.0.0"] {
        assert!(ran.stdout.contains(part), "{part} is not in\n{}", ran.stdout);
    }
}

/// Ranks that are processes, each with the GPU of its number.
#[cfg(all(feature = "nccl", feature = "mpi", unix))]
mod ranks {
    use super::*;
    use crate::command::Running;
    use crate::launcher::launcher;

    const GPUS: (&str, &str) = ("EMULATED_GPUS", "4");

    fn start(settings: &[(&str, &str)], line: &str) -> Running {
        let mut command = with_gpus(launcher(4), settings);
        command.envs([GPUS]).arg(CHIMERA);
        start_with(command, line)
    }

    /// They compute what threads compute, to the bit.
    #[test]
    fn they_train_as_threads() {
        const IN_BF16: &str = "--schedule 1f1b --depth 2 --width 2 --precision bf16";
        for (options, transport) in [
            ("--schedule chimera", "nccl"),
            ("--schedule chimera --shard-optimizer", "nccl"),
            (IN_BF16, "nccl"),
            (IN_BF16, "mpi"),
        ] {
            let options = format!("--device cuda {options}");
            let over = format!("{options} --transport {transport}");
            // Kernels that would wait for NCCL's kernels are loaded before.
            let eager = if transport == "nccl" { "1" } else { "0" };
            let ranks = train(&over, |line| start(&[("EMULATED_EAGER", eager)], line).wait());
            let Ran { stdout, stderr, .. } = &ranks.ran;
            let is_over_nccl = stdout.contains("NCCL 2.30.99");
            assert_eq!(is_over_nccl, transport == "nccl", "{stdout}{stderr}");
            let threads = train_on_gpus(&[GPUS], &options);
            for key in ["loss", "grad_norm"] {
                assert_eq!(ranks.numbers(key), threads.numbers(key), "{options}");
            }
        }
    }

    /// Whatever NCCL is doing when a rank is lost, the others end and report why.
    #[test]
    fn a_lost_rank_is_named() {
        for (lost, by, code) in [(2, "KILL", 5), (0, "KILL", 5), (1, "PANIC", 101), (1, "STOP", 6)]
        {
            let folder = folder();
            let strike = format!("{lost} {by} at 1.7 {}", folder.path().join("struck").display());
            let timeout = if by == "STOP" { 3 } else { 30 };
            let options = format!("--device cuda --transport nccl --timeout {timeout}");
            let ran = start(&[("CHIMERA_STRIKE", &strike)], &line(&folder, &options)).end();
            assert_ne!(ran.code, Some(0));
            for rank in (0..4).filter(|rank| *rank != lost) {
                let path = folder.path().join(format!("run/error.{rank}.json"));
                let text =
                    read_to_string(path).unwrap_or_else(|_| panic!("{by}: {rank}: {}", ran.stderr));
                let error: Value = serde_json::from_str(&text).expect("JSON");
                assert_eq!(
                    (&error["code"], &error["peer"]),
                    (&code.into(), &lost.into()),
                    "{error}"
                );
            }
        }
    }
}

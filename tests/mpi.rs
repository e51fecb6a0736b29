//! Training by ranks that `mpirun` starts: the same bits as with threads, and an end with its cause
//! when something breaks. `cargo xtask mpi` runs it; `MPIRUN` names the launcher.
#![cfg(unix)]

mod command;
#[path = "mpi/ends.rs"]
mod ends;
#[path = "mpi/equal.rs"]
mod equal;
#[path = "mpi/execute.rs"]
mod execute;
#[path = "mpi/forwards.rs"]
mod forwards;
#[path = "command/launcher.rs"]
mod launcher;
#[path = "mpi/limited.rs"]
mod limited;
#[path = "command/metrics.rs"]
mod metrics;
#[path = "mpi/resumed.rs"]
mod resumed;
#[path = "mpi/struck.rs"]
mod struck;
#[path = "mpi/watched.rs"]
mod watched;

use std::collections::BTreeMap;
use std::fs::{read, read_dir, read_link, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use command::{Ran, Running, start_with, text};
use launcher::launcher;
use metrics::losses;
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --micro-batch-size 2 \
                     --steps 5 --threads 1 --depth 4 --micro-batches 8 --optimizer adamw \
                     --lr-schedule cosine";

/// The options of a run that writes into the folder `name`.
fn options(folder: &TempDir, name: &str, options: &str) -> String {
    let (data, out) = (text(folder), folder.path().join(name));
    format!("train {MODEL} --data {} --out {} {options}", data.display(), out.display())
}

const CHIMERA: &str = env!("CARGO_BIN_EXE_chimera");

/// Starts `n` ranks with the words of `line`.
fn start_ranks(n: usize, line: &str) -> Running {
    let mut command = launcher(n);
    command.arg(CHIMERA);
    start_with(command, line)
}

/// Returns true if the launcher lets survivors report why they end. MPICH's kills them at once.
fn survivors_speak() -> bool {
    !std::env::var("MPIRUN").is_ok_and(|launcher| launcher.contains("mpiexec"))
}

fn ranks(n: usize, line: &str) -> Ran {
    start_ranks(n, line).wait()
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

/// The error files of a run, by rank.
fn errors(run: &Path) -> BTreeMap<u64, Value> {
    let files = read_dir(run).expect("a folder").map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|n| {
            n.to_string_lossy().starts_with("error.") && n.to_string_lossy().ends_with(".json")
        })
    };
    let parse = |path: PathBuf| {
        let text = read_to_string(path).expect("an error file");
        let error: Value = serde_json::from_str(&text).expect("JSON");
        (error["rank"].as_u64().expect("a rank"), error)
    };
    files.filter(named).map(parse).collect()
}

/// The pid of a rank of the run that writes into `out`.
fn pid_of(rank: usize, out: &Path) -> u32 {
    let is_rank = |pid: &u32| {
        let of = |name: &str| read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let said =
            |bytes: Vec<u8>, what: &str| bytes.split(|b| *b == 0).any(|w| w == what.as_bytes());
        let ranks = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("PMI_RANK={rank}")];
        let environment = of("environ");
        let is_chimera =
            read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(CHIMERA));
        is_chimera
            && said(of("cmdline"), &out.display().to_string())
            && ranks.iter().any(|name| said(environment.clone(), name))
    };
    let all = read_dir("/proc").expect("processes").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_rank).expect("a rank")
}

/// Waits until `n_steps` steps are trained.
fn wait_for_steps(out: &Path, n_steps: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let n_lines = || read_to_string(out.join("metrics.jsonl")).unwrap_or_default().lines().count();
    while n_lines() < n_steps {
        assert!(Instant::now() < deadline, "it never trains");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

//! Training by ranks over QUIC: the same bits as with threads, hosts and members without a common
//! disk, and ends with their cause.
#![cfg(unix)]

mod command;
#[cfg(target_os = "linux")]
#[path = "quic/cut.rs"]
mod cut;
#[path = "quic/hosted.rs"]
mod hosted;
#[cfg(target_os = "linux")]
#[path = "quic/hostile.rs"]
mod hostile;
#[path = "quic/kills.rs"]
mod kills;
#[path = "command/metrics.rs"]
mod metrics;
#[path = "../comm-quic/tests/network/port.rs"]
mod port;
#[path = "quic/ranks.rs"]
mod ranks;
#[path = "quic/rebalanced.rs"]
mod rebalanced;
#[path = "quic/refused.rs"]
mod refused;
#[cfg(target_os = "linux")]
#[path = "quic/relayed.rs"]
mod relayed;
#[cfg(target_os = "linux")]
#[path = "quic/strikes.rs"]
mod strikes;
#[path = "quic/survives.rs"]
mod survives;

use std::fs::write;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use command::{Ran, Running, start, start_with, text};
use metrics::losses;
use port::free_port;
use tempfile::TempDir;

const MODEL: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --micro-batch-size 2 \
                     --threads 1 --micro-batches 8 --optimizer adamw --lr-schedule cosine --scaling direct";
const CHIMERA: &str = env!("CARGO_BIN_EXE_chimera");

/// The options of a run that writes into the folder `name`.
fn options(folder: &TempDir, name: &str, options: &str) -> String {
    let (data, out) = (text(folder), folder.path().join(name));
    format!("{MODEL} --data {} --out {} {options}", data.display(), out.display())
}

/// Starts `n` ranks that share a secret.
fn start_ranks(folder: &TempDir, n: usize, line: &str) -> Vec<Running> {
    let port = free_port();
    (0..n).map(|rank| start_rank(folder, (rank, n), port, line)).collect()
}

/// Starts a rank of a cluster.
fn start_rank(folder: &TempDir, (rank, n): (usize, usize), port: u16, line: &str) -> Running {
    let ticket = folder.path().join("ticket");
    write(&ticket, "a secret of the tests of QUIC\n").expect("a file");
    start(&format!(
        "train {line} --transport quic --rank {rank} --world {n} --rendezvous 127.0.0.1:{port} \
         --ticket {}",
        ticket.display()
    ))
}

fn wait(ranks: Vec<Running>) -> Vec<Ran> {
    ranks.into_iter().map(Running::wait).collect()
}

/// Waits until `is_so`, for at most a minute.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// Starts a command with an environment variable.
fn start_in(line: &str, variables: &[(&str, &str)]) -> Running {
    let mut command = Command::new(CHIMERA);
    command.envs(variables.iter().copied());
    start_with(command, line)
}

//! If a rank is killed, the others end. The run then continues from its checkpoint, with the same or
//! another depth.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const STEPS: usize = 24;

/// Starts the ranks of a run in a folder.
fn start(n_ranks: usize, depth: usize, out: &Path) -> Vec<Child> {
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let listeners: Vec<_> = (0..n_ranks).map(bind).collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("bound").port().to_string();
    let ports = listeners.iter().map(port).collect::<Vec<_>>().join(",");
    drop(listeners);
    let rank = |rank: usize| {
        Command::new(env!("CARGO_BIN_EXE_processes"))
            .args([&rank.to_string(), &ports])
            .arg(out)
            .args([depth.to_string(), STEPS.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    };
    (0..n_ranks).map(rank).collect()
}

/// Waits for all ranks.
fn ended(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect()
}

/// Trains to the end. Returns the weights as rank 0 prints them.
fn weights(n_ranks: usize, depth: usize, out: &Path) -> String {
    let ended = ended(start(n_ranks, depth, out));
    for rank in &ended {
        assert!(rank.status.success(), "{}", String::from_utf8_lossy(&rank.stderr));
    }
    String::from_utf8(ended[0].stdout.clone()).expect("text")
}

/// The loss of every step of the run in a folder.
fn losses(out: &Path) -> Vec<f64> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).expect("metrics");
    let loss = |line: &str| {
        let metrics: serde_json::Value = serde_json::from_str(line).expect("JSON");
        metrics["loss"].as_f64().expect("a loss")
    };
    text.lines().map(loss).collect()
}

/// Every number of the weights, in order.
fn numbers(weights: &str) -> Vec<f64> {
    let words = weights.split([' ', ',', '[', ']', '\n']).filter(|word| word.contains('.'));
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_run_goes_on_after_a_kill_under_the_same_depth_and_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let undisturbed = weights(4, 4, &at("undisturbed"));
    assert_eq!(losses(&at("undisturbed")).len(), STEPS);

    let mut ranks = start(4, 4, &at("killed"));
    let began = Instant::now();
    let has_saved = || {
        let saved = fs::read_dir(at("killed").join("checkpoints"));
        saved.is_ok_and(|mut saved| {
            saved.any(|entry| entry.is_ok_and(|entry| entry.path().join("manifest.json").exists()))
        })
    };
    while !has_saved() {
        assert!(began.elapsed() < Duration::from_secs(60), "no checkpoint");
        thread::sleep(Duration::from_millis(1));
    }
    ranks[2].kill().expect("killed");
    for (rank, ended) in ended(ranks).iter().enumerate() {
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "rank {rank} went on");
        assert!(rank == 2 || said.contains("rank 2"), "rank {rank}: {said}");
    }
    assert!(losses(&at("killed")).len() < STEPS);
    let copied = Command::new("cp").arg("-r").args([at("killed"), at("other")]).status();
    assert!(copied.expect("cp").success());

    assert_eq!(weights(4, 4, &at("killed")), undisturbed, "to the bit");
    assert_eq!(losses(&at("killed")), losses(&at("undisturbed")), "to the bit");

    let other = weights(2, 2, &at("other"));
    let (other, same) = (numbers(&other), numbers(&undisturbed));
    assert!(other.len() == same.len() && other.len() > 10_000, "{}", other.len());
    let differ = other.iter().zip(&same).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(differ < 1e-4, "weights differ by {differ}");
    let pairs = losses(&at("other")).into_iter().zip(losses(&at("undisturbed")));
    let differ = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(differ < 1e-5, "losses differ by {differ}");
}

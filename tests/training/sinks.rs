//! `--tensorboard` and `--prometheus`.

use std::fs::create_dir;
#[cfg(target_os = "linux")]
use std::io::{Read, Write};
use std::net::TcpListener;
#[cfg(target_os = "linux")]
use std::net::{SocketAddr, TcpStream};
#[cfg(target_os = "linux")]
use std::process::Command;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use super::MODEL;
#[cfg(target_os = "linux")]
use crate::command::start_with;
use crate::command::{chimera, folder, text};

/// The records of an event file.
fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        records.push(&after[4..4 + length]);
        rest = &after[4 + length + 4..];
    }
    assert!(rest.is_empty(), "the last record is torn");
    records
}

#[test]
fn an_event_file_has_one_event_per_step() {
    let folder = folder();
    let (data, events) = (text(&folder), folder.path().join("events"));
    let places = format!("--data {} --tensorboard {}", data.display(), events.display());
    let ran = chimera(&format!("train {MODEL} {places} --eval-every 5"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let files: Vec<_> =
        events.read_dir().expect("a folder").map(|f| f.expect("a file").path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let bytes = std::fs::read(file).expect("events");
    let records = records(&bytes);
    assert_eq!(records.len(), 3 + 5);
    let has =
        |record: &[u8], word: &str| record.windows(word.len()).any(|at| at == word.as_bytes());
    assert!(has(records[0], "brain.Event:2"));
    assert!(has(records[2], "config") && has(records[2], "micro-batches = "));
    for (step, record) in records[3..].iter().enumerate() {
        for tag in ["train/loss", "perf/tokens_per_s", "bytes/rank_1", "perf/mfu"] {
            assert!(has(record, tag), "{tag}");
        }
        assert_eq!(has(record, "val/perplexity"), step == 4);
    }
}

#[test]
fn metrics_are_served_to_this_machine_alone() {
    let folder = folder();
    let data = text(&folder);
    let train = |address: &str| {
        chimera(&format!("train {MODEL} --data {} --prometheus {address}", data.display()))
    };
    let ran = train("127.0.0.1:0");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("metrics: http://127.0.0.1:"), "{}", ran.stdout);
    for address in ["0.0.0.0:9464", "10.0.0.1:9464", "localhost"] {
        let ran = train(address);
        assert_eq!(ran.code, Some(2), "{address}");
        assert!(ran.stderr.contains("an address of this machine alone"), "{}", ran.stderr);
    }
}

#[test]
fn an_address_that_is_taken_leaves_no_folder() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let data = text(&folder);
    let there = folder.path().join("there");
    create_dir(&there).expect("a folder");
    for out in ["a/b", "there"] {
        let ran = chimera(&format!(
            "train {MODEL} --data {} --prometheus {address} --out {}",
            data.display(),
            folder.path().join(out).display()
        ));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("cannot listen at {address}")), "{}", ran.stderr);
    }
    assert!(!folder.path().join("a").exists(), "what was made goes");
    assert!(there.is_dir(), "what was there stays");
}

/// Clients take few of a process's file descriptors, so that enough are left for a checkpoint.
#[cfg(target_os = "linux")]
#[test]
fn silent_clients_keep_no_checkpoint_from_being_saved() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    let mut bash = Command::new("bash");
    let few = "ulimit -n 64; exec \"$0\" \"$@\"";
    bash.args(["-c", few, env!("CARGO_BIN_EXE_chimera")]);
    let places = format!("--data {} --out {}", data.display(), out.display());
    let line = format!(
        "train {MODEL} {places} --steps 1000000 --save-every 1000000 --no-save --prometheus {address}"
    );
    let running = start_with(bash, &line);
    let began = Instant::now();
    while !scraped(address).is_some_and(|page| page.contains("chimera_step ")) {
        assert!(began.elapsed() < Duration::from_secs(120), "no step is shown");
        std::thread::sleep(Duration::from_millis(20));
    }
    let silent: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(address).ok()).collect();
    let page = scraped(address).expect("an answer");
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    let process = running.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &process]).status().is_ok_and(|s| s.success()));
    let ran = running.wait();
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    let checkpoints = out.join("checkpoints").read_dir().expect("a folder");
    assert_eq!(checkpoints.count(), 1, "{}", ran.stderr);
    drop(silent);
}

/// Scrapes the metrics. Returns the response, or `None` if nobody answers.
#[cfg(target_os = "linux")]
fn scraped(address: SocketAddr) -> Option<String> {
    let mut client = TcpStream::connect(address).ok()?;
    write!(client, "GET /metrics HTTP/1.1\r\n\r\n").ok()?;
    let mut page = String::new();
    client.read_to_string(&mut page).ok()?;
    Some(page)
}

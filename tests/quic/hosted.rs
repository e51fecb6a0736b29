//! A host and members that share no disk, as far as they know.

use std::fs::{create_dir_all, read, read_dir, read_to_string};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::command::{Running, chimera, folder, start_with};
use crate::{CHIMERA, losses, options, start_in, until};

/// Starts a host with these options, and returns it with its ticket.
pub(crate) fn host(options: &str) -> (Running, String) {
    host_by(Command::new(CHIMERA), &format!("{options} --listen 127.0.0.1:0"))
}

/// Like [`host`], by a command that runs the program elsewhere.
pub(crate) fn host_by(command: Command, options: &str) -> (Running, String) {
    let host = start_with(command, &format!("host {options}"));
    let stdout = host.output.path().join("stdout");
    let mut ticket = None;
    until("the host prints no ticket", || {
        let text = std::fs::read_to_string(&stdout).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("chimera join "));
        ticket = line.filter(|_| text.ends_with('\n')).map(str::to_string);
        ticket.is_some()
    });
    (host, ticket.expect("found"))
}

/// Starts a member in a folder of its own.
pub(crate) fn member(folder: &TempDir, name: &str, ticket: &str) -> Running {
    member_in(folder, name, ticket, &[])
}

/// Starts a member with variables in its environment.
pub(crate) fn member_in(
    folder: &TempDir,
    name: &str,
    ticket: &str,
    variables: &[(&str, &str)],
) -> Running {
    let cache = folder.path().join(name);
    create_dir_all(&cache).expect("a folder");
    start_in(&format!("join {ticket} --threads 1 --cache {}", cache.display()), variables)
}

fn is_empty(folder: &Path) -> bool {
    read_dir(folder).expect("a folder").next().is_none()
}

/// Members have neither the settings nor the data, and the same bits come out as with threads.
#[test]
fn members_bring_only_their_devices() {
    let folder = folder();
    let line = |name: &str| options(&folder, name, "--schedule chimera --steps 6 --save-every 3");
    let (first, ticket) = host(&format!("{} --wait 3", line("hosted")));
    let members: Vec<_> =
        ["a", "b", "c"].iter().map(|name| member(&folder, name, &ticket)).collect();
    let ended = first.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("\n3 of 3 members\n"), "{}", ended.stderr);
    for member in members {
        let ended = member.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stderr.contains("of 4: 4"), "bytes of the text: {}", ended.stderr);
    }
    for name in ["a", "b", "c"] {
        assert!(is_empty(&folder.path().join(name)), "{name} keeps files of the host");
    }
    let alone = chimera(&format!("train {} --depth 4 --transport threads", line("alone")));
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    let [hosted, alone] = ["hosted", "alone"].map(|name| folder.path().join(name));
    assert_eq!(losses(&hosted), losses(&alone));
    let weights = |run: &Path| read(run.join("model/model.safetensors")).expect("weights");
    assert!(weights(&hosted) == weights(&alone), "other weights");
    let shards = read_dir(hosted.join("checkpoints/step-00000006")).expect("a checkpoint");
    assert_eq!(shards.count(), 5, "four parts and a manifest, all on the host's disk");
    assert_members_are_known(&hosted);
}

/// The host knows the machines, the waits and the links of all ranks.
fn assert_members_are_known(run: &Path) {
    let text = |name: &str| read_to_string(run.join(name)).expect("a file");
    let members: Vec<Value> = serde_json::from_str(&text("members.json")).expect("JSON");
    let ranks: Vec<_> = members.iter().map(|member| member["rank"].as_u64()).collect();
    assert_eq!(ranks, [0, 1, 2, 3].map(Some));
    assert!(members.iter().all(|member| member["flops"].as_f64() > Some(0.0)), "{members:?}");
    let metrics = text("metrics.jsonl");
    let last = metrics.lines().last().expect("a step");
    let last: Value = serde_json::from_str(last).expect("JSON");
    for rank in last["ranks"].as_array().expect("ranks") {
        let peers = rank["peers"].as_array().expect("peers");
        for what in ["wait_s", "sent_bytes", "busy_s"] {
            assert!(peers.iter().any(|peer| peer[what].as_f64() > Some(0.0)), "{what}: {rank}");
        }
    }
}

/// A member that dies ends the run with its name, and the host resumes with a newcomer.
#[test]
fn a_killed_member_is_named_and_another_takes_its_place() {
    let folder = folder();
    let line = |name: &str| {
        options(&folder, name, "--schedule 1f1b --steps 300 --save-every 5 --resume auto --no-save")
    };
    let out = folder.path().join("killed");
    let (first, ticket) = host(&line("killed"));
    let mut victim = member(&folder, "a", &ticket);
    until("no checkpoint", || {
        let saved = read_dir(out.join("checkpoints")).into_iter().flatten().flatten();
        saved.into_iter().any(|entry| entry.path().join("manifest.json").exists())
    });
    victim.child.kill().expect("killed");
    let ended = first.wait();
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("rank 1 ended before it sent"), "{}", ended.stderr);
    drop(victim.end());
    let (again, ticket) = host(&line("killed"));
    let newcomer = member(&folder, "b", &ticket);
    let ended = again.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("resumes from"), "{}", ended.stdout);
    assert_eq!(newcomer.wait().code, Some(0));
    let alone = chimera(&format!("train {} --depth 2 --transport threads", line("alone")));
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    assert_eq!(losses(&out), losses(&folder.path().join("alone")));
}

/// A member may start a process for each of its devices.
#[test]
fn a_member_brings_several_devices() {
    let folder = folder();
    let line = options(&folder, "several", "--schedule 1f1b --steps 3");
    let (host, ticket) = host(&format!("{line} --wait 2"));
    let cache = folder.path().display();
    let joined = start_with(
        Command::new(CHIMERA),
        &format!("join {ticket} --devices 2 --threads 1 --cache {cache}/cache --quiet"),
    );
    let ended = host.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("3 ranks over QUIC"), "{}", ended.stdout);
    assert_eq!(joined.wait().code, Some(0));
}

//! Runs on a system without space on disk, without a folder, or without threads.

use std::fs::{Permissions, copy, create_dir, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Place, wait_for};
use crate::command::start_with;

const OFFLOADS: &str =
    "--depth 2 --micro-batches 8 --schedule gpipe --offload auto --memory-cap 2 --steps 2";

#[test]
fn activations_without_room_on_disk_end_the_run() {
    let place = Place::new();
    let line = place.line(OFFLOADS).replace(" --save ", " --no-save --tensorboard ");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_chimera")]);
    let ran = start_with(limited, &line).wait();
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    let error = place.error(&ran, 0);
    assert_eq!(error["class"], "io");
    assert!(ran.stderr.contains("TMPDIR sets its folder"), "{}", ran.stderr);
}

#[test]
fn activations_without_a_folder_refuse_the_run() {
    let place = Place::new();
    let train = |options: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
        command.env("TMPDIR", place.at("none"));
        start_with(command, &place.line(options)).wait()
    };
    let ran = train(OFFLOADS);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("offload: cannot make a file for activations in"),
        "{}",
        ran.stderr
    );
    assert!(!place.at("run").exists());
    assert_eq!(train("--depth 2 --steps 1").code, Some(0), "who moves nothing needs no folder");
}

/// A command that runs as an ordinary user, since a limit on processes does not hold for root.
fn as_nobody(program: &Path) -> Command {
    if !rustix::process::getuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
    command
}

/// A copy of the program in a folder that everybody may write to.
fn opened_to_all(place: &Place) -> PathBuf {
    let program = place.at("chimera");
    copy(env!("CARGO_BIN_EXE_chimera"), &program).expect("copied");
    create_dir(place.at("run")).expect("a folder");
    for path in [place.folder.path(), &place.at("run"), &program] {
        set_permissions(path, Permissions::from_mode(0o777)).expect("open to all");
    }
    program
}

#[test]
fn a_start_without_a_thread_ends_in_words() {
    let place = Place::new();
    let program = opened_to_all(&place);
    let train = place.line("--depth 2 --steps 1");
    let search = "schedule show auto --depth 2 --micro-batches 2 --search-time 0.1".to_string();
    for (line, code) in [(train, 8), (search, 0)] {
        let mut limited = as_nobody(Path::new("prlimit"));
        limited.arg("--nproc=1:1").arg(&program);
        let ran = start_with(limited, &line).wait();
        assert_eq!(ran.code, Some(code), "{line}: {}", ran.stderr);
        let is_said = ran.stderr.contains("cannot start a thread for each core: ");
        assert_eq!(is_said, code == 8, "{line}: {}", ran.stderr);
    }
}

#[test]
fn a_save_without_a_thread_is_written_all_the_same() {
    let place = Place::new();
    let program = opened_to_all(&place);
    let line = place.line("--depth 2 --steps 300 --save-every 100 --lr-schedule constant");
    let running = start_with(as_nobody(&program), &line);
    wait_for(&place.at("run/metrics.jsonl"), "\"step\":0,");
    let pid = running.child.id().to_string();
    let limited = as_nobody(Path::new("prlimit")).args(["--pid", &pid, "--nproc=1:1"]).status();
    assert!(limited.is_ok_and(|status| status.success()));
    let ran = running.wait();
    assert_eq!((ran.code, ran.stderr.contains("warning")), (Some(0), false), "{}", ran.stderr);
    assert!(place.at("run/checkpoints/step-00000300/manifest.json").exists());
}

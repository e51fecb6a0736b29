//! What a run does where the system has no room on disk or no folder for temporary files.

use std::process::Command;

use super::Place;
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
    assert!(ran.stderr.contains("TMPDIR says where it is"), "{}", ran.stderr);
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

//! Output on standard error, which the ranks of a launcher share.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The writes of a command to standard error: each is a message of a socket.
fn writes(words: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
    command.args(words.split(' ')).envs(environment.iter().copied()).stdout(Stdio::null());
    let mut child = command.stderr(OwnedFd::from(theirs)).spawn().expect("starts");
    ours.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
    let mut bytes = [0; 1 << 16];
    let mut all = Vec::new();
    loop {
        let has_ended = child.try_wait().expect("a child").is_some();
        match ours.recv(&mut bytes) {
            Ok(n) if n > 0 => all.push(String::from_utf8_lossy(&bytes[..n]).into_owned()),
            _ if has_ended => return all,
            _ => {}
        }
    }
}

#[test]
fn an_error_is_one_write() {
    let as_rank = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "1")];
    for (words, begin) in [
        ("profile", "error: profile measures"),
        ("train --depth x", "error: invalid value 'x'"),
        ("simulate 1f1b --depth 4 --lost 2", "error: --lost 2: "),
    ] {
        let writes = writes(words, &as_rank);
        let is_line = |text: &String| text.starts_with(begin) && text.ends_with('\n');
        assert!(writes.len() == 1 && writes.iter().all(is_line), "{words}: {writes:?}");
    }
}

//! The command, run as by a user.

use std::fs::{File, write};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The outcome of a command line.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that is running.
pub(crate) struct Running {
    pub(crate) child: Child,
    line: String,
    /// The folder of its `stdout` and `stderr`, in which it runs.
    pub(crate) output: TempDir,
}

/// Runs `chimera` with the words of `line`. Double quotes group words.
pub(crate) fn chimera(line: &str) -> Ran {
    start(line).wait()
}

/// Starts `chimera` with the words of `line`.
pub(crate) fn start(line: &str) -> Running {
    start_with(Command::new(env!("CARGO_BIN_EXE_chimera")), line)
}

/// Starts a command with the words of `line` as arguments.
pub(crate) fn start_with(mut command: Command, line: &str) -> Running {
    let output = folder();
    let file = |name| File::create(output.path().join(name)).expect("a file");
    let child = command
        .args(words(line))
        .current_dir(output.path())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn()
        .expect("starts");
    Running { child, line: line.to_string(), output }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split('"').enumerate();
    parts.flat_map(|(nth, part)| match nth % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    })
}

/// More time than any command of a test takes, even on emulated GPUs beside others.
const HANGS: Duration = Duration::from_secs(240);

impl Running {
    /// Waits for the end. No command may hang or panic, whatever its input.
    pub(crate) fn wait(self) -> Ran {
        let line = self.line.clone();
        let ran = self.end();
        assert!(!ran.stderr.contains("panicked"), "`{line}`: {}", ran.stderr);
        ran
    }

    /// Waits for the end, which may be a panic.
    pub(crate) fn end(mut self) -> Ran {
        let deadline = Instant::now() + HANGS;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("`chimera {}` does not end: {}", self.line, self.read("stderr"));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Ran { code: status.code(), stdout: self.read("stdout"), stderr: self.read("stderr") }
    }

    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.output.path().join(name)).expect("a file");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A folder that is removed when its owner is dropped.
pub(crate) fn folder() -> TempDir {
    TempDir::new().expect("a temporary folder")
}

/// Writes a text to train on, always the same, as a file in `folder`.
pub(crate) fn text(folder: &TempDir) -> PathBuf {
    let words = ["pipe", "stage", "worker", "to", "the", "and", "bubble", "idle", "of", "a"];
    let mut state = 1u64;
    let mut text = String::new();
    while text.len() < 4000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        text.push_str(words[(state >> 33) as usize % words.len()]);
        text.push(' ');
    }
    let path = folder.path().join("text.txt");
    // A run may be reading it, so it is not written again.
    if !path.exists() {
        write(&path, text).expect("a file");
    }
    path
}

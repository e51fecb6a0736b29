//! A command within bounds of time and memory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Exit codes that a command may have: those of docs/runs.md, and that of a second signal.
const DOCUMENTED: [i32; 11] = [0, 2, 3, 4, 5, 6, 7, 8, 9, 75, 130];
/// KiB of address space: a file that is read without a limit soon has them, a tiny training never.
const ADDRESS_SPACE: u64 = 6 << 20;
/// Longer messages echo what they were given.
const LONGEST_MESSAGE: usize = 20_000;
const LOOK: Duration = Duration::from_millis(3);

/// What every command must keep to.
#[derive(Clone)]
pub(super) struct Limits {
    pub(super) program: PathBuf,
    pub(super) patience: Duration,
}

/// How a command ended.
pub(super) struct Outcome {
    status: Option<ExitStatus>,
    pub(super) stdout: String,
    stderr: String,
}

impl Limits {
    /// Starts a command with its output in `folder`.
    pub(super) fn start(&self, words: &[String], folder: &Path) -> Result<Child> {
        let file =
            |name| File::create(folder.join(name)).context("no room for what a command says");
        let limited = format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &limited]).arg(&self.program).args(words);
        command.current_dir(folder).stdin(std::process::Stdio::null());
        command.env("RAYON_NUM_THREADS", "2").env("RUST_BACKTRACE", "0");
        command.stdout(file(".stdout")?).stderr(file(".stderr")?);
        command.spawn().context("bash does not start")
    }

    /// Waits for the end, which is made when it does not come.
    pub(super) fn end(&self, mut child: Child, folder: &Path) -> Result<Outcome> {
        let began = Instant::now();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if began.elapsed() > self.patience => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => sleep(LOOK),
            }
        };
        let read = |name| -> Result<String> {
            Ok(String::from_utf8_lossy(&std::fs::read(folder.join(name))?).into_owned())
        };
        Ok(Outcome { status, stdout: read(".stdout")?, stderr: read(".stderr")? })
    }

    pub(super) fn run(&self, words: &[String], folder: &Path) -> Result<Outcome> {
        self.end(self.start(words, folder)?, folder)
    }
}

impl Outcome {
    /// Whether it came to its end without an error.
    pub(super) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Whether a signal of the three that are sent ended it.
    pub(super) fn was_killed(&self) -> bool {
        #[cfg(unix)]
        return self.status.is_some_and(|status| {
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            matches!(signal, Some(2 | 9 | 15))
        });
        #[cfg(not(unix))]
        self.status.is_some_and(|status| !status.success())
    }

    /// Refuses hangs, panics, deaths, codes that are not documented, and refusals without words or with too many.
    pub(super) fn check(&self) -> Result<()> {
        let Outcome { status, stderr, .. } = self;
        let said = || stderr.chars().take(600).collect::<String>();
        let Some(status) = status else { bail!("it does not end: {}", said()) };
        let Some(code) = status.code() else { bail!("{status}: {}", said()) };
        ensure!(!stderr.contains("panicked"), "it panicked: {}", said());
        ensure!(DOCUMENTED.contains(&code), "exit code {code}: {}", said());
        ensure!(code == 0 || !stderr.trim().is_empty(), "exit code {code} without a word");
        ensure!(stderr.len() <= LONGEST_MESSAGE, "{} bytes of message: {}", stderr.len(), said());
        Ok(())
    }
}

/// The words of a line, without quotes.
pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

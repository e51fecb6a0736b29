//! A command with bounds on time and memory, and the rules it must follow.

use std::fmt::{Display, Formatter};
use std::fs::{File, read, read_to_string};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Exit codes that a command may have: those of docs/runs.md, and that of a second signal.
const DOCUMENTED: [i32; 11] = [0, 2, 3, 4, 5, 6, 7, 8, 9, 75, 130];
/// Limit on resident bytes: a file that is read without a limit soon exceeds it, a tiny training
/// never does.
const MOST_MEMORY: u64 = 2 << 30;
/// Limit on the bytes of a message: longer ones echo their input.
const LONGEST_MESSAGE: usize = 20_000;
const LOOK: Duration = Duration::from_millis(3);

/// A flaw in the end of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Flaw {
    Panic,
    Hang,
    Memory,
    Code,
    Message,
    Lost,
    /// A flaw of the case itself.
    Case,
}

impl Flaw {
    pub(super) const ALL: [(Flaw, &str); 7] = [
        (Flaw::Panic, "panics"),
        (Flaw::Hang, "hangs"),
        (Flaw::Memory, "memory"),
        (Flaw::Code, "codes"),
        (Flaw::Message, "messages"),
        (Flaw::Lost, "lost"),
        (Flaw::Case, "cases"),
    ];
}

/// A flaw, and the place where it was seen.
#[derive(Debug)]
pub(super) struct Failure(pub(super) Flaw, pub(super) String);

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Failure {}

/// Fails with a flaw unless something holds.
pub(super) fn must(holds: bool, flaw: Flaw, what: impl Into<String>) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure(flaw, what.into()).into()) }
}

/// The running commands, and the time that each may take.
#[derive(Clone)]
pub(super) struct Limits {
    pub(super) program: PathBuf,
    pub(super) patience: Duration,
}

/// The conditions that a command runs under.
#[derive(Clone, Default)]
pub(super) struct Under {
    /// Words before the command, which start it.
    pub(super) starter: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    /// Exit codes that are valid besides the documented ones; 128 plus the number of a signal.
    pub(super) codes: &'static [i32],
    /// Whether it may end without a message, because it cannot write one.
    pub(super) is_mute: bool,
    /// Whether its output may have control characters, because its arguments have some.
    pub(super) is_odd: bool,
}

impl Under {
    /// A command line as one would type it.
    pub(super) fn line(&self, words: &[String]) -> String {
        let quoted = |word: &String| {
            if word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./,:".contains(c)) {
                word.clone()
            } else {
                format!("{word:?}")
            }
        };
        let environment = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let line =
            self.starter.iter().cloned().chain(["chimera".into()]).chain(words.iter().map(quoted));
        environment.chain(line).collect::<Vec<_>>().join(" ")
    }
}

/// The end of a command.
pub(super) struct Outcome {
    /// Its exit code, or 128 and the number of the signal that ended it; `None` if it had to be killed.
    code: Option<i32>,
    peak_memory: u64,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Limits {
    /// Starts a command with its output in `folder`.
    pub(super) fn start(&self, words: &[String], under: &Under, folder: &Path) -> Result<Child> {
        let file =
            |name| File::create(folder.join(name)).context("cannot keep what a command prints");
        let program = self.program.display().to_string();
        let line = [&under.starter[..], &[program], words].concat();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).current_dir(folder).stdin(Stdio::null());
        command.env("RAYON_NUM_THREADS", "2").env("RUST_BACKTRACE", "0");
        command.env("TMPDIR", folder); // where every user may write
        command.envs(under.environment.iter().map(|(name, value)| (name, value)));
        command.stdout(file(".stdout")?).stderr(file(".stderr")?);
        command.spawn().with_context(|| format!("{} does not start", line[0]))
    }

    /// Waits for the end of a command, and kills it if it takes too long or too much memory.
    pub(super) fn end(&self, mut child: Child, folder: &Path) -> Result<Outcome> {
        let began = Instant::now();
        let mut peak_memory = 0;
        let code = loop {
            peak_memory = peak_memory.max(peak(child.id()));
            match child.try_wait()? {
                Some(status) => {
                    break status.code().or_else(|| Some(128 + status.signal().unwrap_or(0)));
                }
                None if began.elapsed() > self.patience || peak_memory > MOST_MEMORY => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => sleep(LOOK),
            }
        };
        let text = |name| -> Result<String> {
            Ok(String::from_utf8_lossy(&read(folder.join(name))?).into_owned())
        };
        Ok(Outcome { code, peak_memory, stdout: text(".stdout")?, stderr: text(".stderr")? })
    }

    pub(super) fn run(&self, words: &[String], under: &Under, folder: &Path) -> Result<Outcome> {
        self.end(self.start(words, under, folder)?, folder)
    }
}

/// The peak memory of a process in bytes so far; 0 if unknown.
fn peak(pid: u32) -> u64 {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

impl Outcome {
    /// Returns true if it ended without an error.
    pub(super) fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// Returns true if one of the signals that are sent ended it.
    pub(super) fn was_killed(&self) -> bool {
        matches!(self.code, Some(130 | 137 | 143))
    }

    /// Refuses hangs, panics, too much memory, undocumented exit codes, and messages that are
    /// missing, too long or not text.
    pub(super) fn check(&self, under: &Under) -> Result<()> {
        let Outcome { code, peak_memory, stdout, stderr } = self;
        let said = || stderr.chars().take(600).collect::<String>().escape_debug().to_string();
        let mib = peak_memory >> 20;
        must(*peak_memory <= MOST_MEMORY, Flaw::Memory, format!("it takes {mib} MiB: {}", said()))?;
        let Some(code) = code else {
            return must(false, Flaw::Hang, format!("it does not end: {}", said()));
        };
        let is_bug = *code == 101 && !under.codes.contains(code);
        // Without memory for a thread's signal stack the standard library aborts, with the message
        // of a panic.
        let aborted = *code == 134 && under.codes.contains(code);
        let panicked = is_bug || !aborted && stderr.contains("panicked at");
        must(!panicked, Flaw::Panic, format!("it panicked, code {code}: {}", said()))?;
        let is_known = DOCUMENTED.contains(code) || under.codes.contains(code);
        must(is_known, Flaw::Code, format!("exit code {code}: {}", said()))?;
        let is_mute = *code != 0 && stderr.trim().is_empty() && !under.is_mute && *code < 128;
        must(!is_mute, Flaw::Message, format!("exit code {code} without a word"))?;
        let n = stderr.len();
        must(n <= LONGEST_MESSAGE, Flaw::Message, format!("{n} bytes of message: {}", said()))?;
        let stdout = if under.is_odd { "" } else { stdout };
        for (text, name) in [(stderr.as_str(), "error"), (stdout, "output")] {
            let odd = text.find(|c: char| c.is_control() && !"\n\t".contains(c));
            let near = odd.map(|at| text[..at].chars().rev().take(80).collect::<Vec<_>>());
            let near = near.map(|near| near.into_iter().rev().collect::<String>());
            let what = || format!("a control character on standard {name} after {near:?}");
            must(odd.is_none(), Flaw::Message, what())?;
        }
        Ok(())
    }
}

/// The words of a line, without quotes.
pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

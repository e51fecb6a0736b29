//! A machine that brings several devices: a process for each.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::Builder;

use anyhow::{Context, Result, bail};

use super::{Join, cores};
use crate::cli::parts::terminal::leftover::leave;
use crate::cli::parts::terminal::signals::on_signal;

/// The exit code of a process whose parent is gone, as after a signal.
const PARENT_GONE: i32 = 130;

impl Join {
    /// Starts a process for each device, and waits for all.
    pub(super) fn run_each(&self) -> Result<()> {
        let program = std::env::current_exe()?;
        let threads = self.threads.unwrap_or((cores() as u32 / self.devices).max(1));
        let (kind, first) = self.device.split_once(':').unwrap_or((&self.device, "0"));
        let first: u32 = first.parse().with_context(|| format!("--device {}", self.device))?;
        let mut members = Vec::new();
        for nth in 0..self.devices {
            let device =
                if kind == "cpu" { kind.into() } else { format!("{kind}:{}", first + nth) };
            let mut command = Command::new(&program);
            command.args(["join", &self.ticket, "--device", &device, "--threads"]);
            command.arg(threads.to_string());
            command.args(self.cache.iter().flat_map(|cache| [Path::new("--cache"), cache]));
            command.args(self.quiet.then_some("--quiet")).arg("--of-parent").stdin(Stdio::piped());
            members.push(command.spawn().context("cannot start a process for each device")?);
        }
        pass_signals_on(members.iter().map(Child::id).collect())?;
        let ended = members.iter_mut().map(wait_for);
        let ended = ended.collect::<std::io::Result<Vec<ExitStatus>>>()?;
        match ended.iter().find(|status| !status.success()) {
            Some(status) => bail!("a device has failed ({status})"),
            None => Ok(()),
        }
    }
}

/// Waits for a process; it ends if this one does, which holds its standard input until then.
fn wait_for(member: &mut Child) -> std::io::Result<ExitStatus> {
    let _held = member.stdin.take();
    member.wait()
}

/// Ends this process when its standard input does.
pub(super) fn end_with_parent() -> Result<()> {
    let watch = || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        leave(PARENT_GONE)
    };
    let started = Builder::new().name("parent".into()).spawn(watch);
    started.map(drop).context("cannot start the thread that watches the parent")
}

/// Sends SIGINT to these processes when this one is to stop, as a terminal does. They stop together.
fn pass_signals_on(members: Vec<u32>) -> Result<()> {
    on_signal(move || {
        #[cfg(unix)]
        for member in &members {
            use nix::sys::signal::{Signal, kill};
            let _ = kill(nix::unistd::Pid::from_raw(*member as i32), Signal::SIGINT);
        }
        #[cfg(not(unix))]
        let _ = &members; // its terminal tells them
    })
}

//! Exit codes: the class of each error, for scripts.

use std::fs::remove_dir_all;
use std::io::{Error, ErrorKind};
#[cfg(feature = "quic")]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

use chimera_core::analyze::{Reason, Refusal, Savings};
use chimera_core::fault::{Class, Fault};

use crate::cli::parts::terminal::console::tell;
use crate::run::class_of;

/// The folder that goes when this process ends.
static LEFTOVER: OnceLock<PathBuf> = OnceLock::new();

/// Removes a folder at the end of this process by [`leave`].
#[cfg(feature = "quic")]
pub(crate) fn remove_at_exit(folder: &Path) {
    let _ = LEFTOVER.set(folder.to_path_buf());
}

/// Ends this process at once, without the folder that is not to stay.
pub(crate) fn leave(code: i32) -> ! {
    LEFTOVER.get().into_iter().for_each(|folder| drop(remove_dir_all(folder)));
    std::process::exit(code)
}

/// Prints an error with its causes on standard error and returns its exit code. A stop on request
/// is not an error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS; // the reader has seen enough
    }
    match error.downcast_ref::<Fault>() {
        Some(fault) if fault.class == Class::Requeue => tell(&fault.message),
        _ => tell(format_args!("error: {error:#}{}", remedy(error).unwrap_or_default())),
    }
    ExitCode::from(class_of(error).code())
}

/// Returns true if the reader of our output is gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<Error>();
        io.is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}

/// Suggests what to do about an order that holds too much memory, beyond what is already done.
fn remedy(error: &anyhow::Error) -> Option<String> {
    let Reason::Memory { savings, .. } = error.downcast_ref::<Refusal>()?.reason else {
        return None;
    };
    let recompute = (!savings.recomputes).then_some("--recompute full");
    let moves: &[&str] = match savings {
        Savings { shares: true, .. } => &["--offload auto instead of --bpipe"],
        Savings { offloads: true, .. } => &[],
        _ => &["--offload auto", "--bpipe"],
    };
    let options: Vec<&str> = recompute.into_iter().chain(moves.iter().copied()).collect();
    let add = match &options[..] {
        [] => String::new(),
        [before @ .., last] if !before.is_empty() => {
            format!("add {} or {last}, or ", before.join(", "))
        }
        only => format!("add {}, or ", only.concat()),
    };
    Some(format!(
        "\nto hold fewer, {add}take a schedule that holds fewer (`chimera schedule compare`); or raise --memory-cap"
    ))
}

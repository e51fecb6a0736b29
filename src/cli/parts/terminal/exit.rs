//! Exit codes: the class of each error, for scripts.

use std::io::{Error, ErrorKind};
use std::process::ExitCode;

use chimera_core::analyze::{Reason, Refusal, Savings};
use chimera_core::fault::{Class, Fault};

use crate::cli::parts::terminal::console::tell;
use crate::run::class_of;

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

//! Exit codes: what each kind of error is to a script.

use std::io::{Error, ErrorKind};
use std::process::ExitCode;

use chimera_core::analyze::{Reason, Refusal, Savings};
use chimera_core::device::DeviceError;
use chimera_core::fault::{Class, Fault};
use chimera_core::interchange::ReadError;
use chimera_core::search::AutoError;

use crate::cli::parts::terminal::console::tell;
use crate::device::NoThread;
use crate::formats::checkpoint::{Diverged, Unusable};

/// Prints an error with its causes on standard error and returns its exit code. A stop on request is no error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS; // whoever read us has seen enough
    }
    match error.downcast_ref::<Fault>() {
        Some(fault) if fault.class == Class::Requeue => tell(&fault.message),
        _ => tell(format_args!("error: {error:#}{}", remedy(error).unwrap_or_default())),
    }
    ExitCode::from(class(error).code())
}

/// Whether whoever read what was written has gone away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<Error>();
        io.is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}

/// What to do about an order that holds too much, beside what it does already.
fn remedy(error: &anyhow::Error) -> Option<String> {
    let Reason::Memory { savings, .. } = error.downcast_ref::<Refusal>()?.reason else {
        return None;
    };
    let recompute = (!savings.recomputes).then_some("--recompute full");
    let moves: &[&str] = match savings {
        Savings { shares: true, .. } => &["--offload auto in the place of --bpipe"],
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

/// An error that stands for several.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Several {
    pub(crate) class: Class,
    pub(crate) message: String,
}

/// The class of an error: that of the fault that ended a run, of a refused schedule or checkpoint, of weights that are not
/// finite, of a device that failed, of a disk that is full; all else is wrong usage.
pub(crate) fn class(error: &anyhow::Error) -> Class {
    error.chain().find_map(class_of).unwrap_or(Class::Usage)
}

fn class_of(cause: &(dyn std::error::Error + 'static)) -> Option<Class> {
    if let Some(fault) = cause.downcast_ref::<Fault>() {
        return Some(fault.class);
    }
    if let Some(several) = cause.downcast_ref::<Several>() {
        return Some(several.class);
    }
    let is_too_large = matches!(cause.downcast_ref(), Some(AutoError::Memory(_)));
    if cause.is::<Refusal>() || cause.is::<ReadError>() || is_too_large {
        return Some(Class::Schedule);
    }
    if cause.is::<NoThread>() {
        return Some(Class::OutOfMemory);
    }
    if cause.is::<Unusable>() {
        return Some(Class::Checkpoint);
    }
    if cause.is::<Diverged>() {
        return Some(Class::NonFinite);
    }
    let kind = cause.downcast_ref::<Error>().map(Error::kind);
    if matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded)) {
        return Some(Class::Io);
    }
    cause.downcast_ref::<DeviceError>().map(DeviceError::class)
}

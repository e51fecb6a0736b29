//! The class of an error, from which the exit code of a process follows.

use std::io::{Error, ErrorKind};

use chimera_core::analyze::Refusal;
use chimera_core::device::DeviceError;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::interchange::ReadError;
use chimera_core::search::AutoError;
use chimera_device::NoThread;
use chimera_formats::checkpoint::{Diverged, Unusable};

/// Several errors reported as one.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Several {
    /// The class of the worst of them.
    pub class: Class,
    /// The messages of all of them.
    pub message: String,
}

/// Returns the class of an error. Faults that end a run, refused schedules and checkpoints, weights that
/// are not finite, failed devices and full disks have classes of their own; everything else is wrong usage.
pub fn class_of(error: &anyhow::Error) -> Class {
    error.chain().find_map(class_of_cause).unwrap_or(Class::Usage)
}

/// Turns an error of rank `me` into a fault, which can be sent to other ranks.
pub fn fault_of(error: &anyhow::Error, me: Rank) -> Fault {
    match error.downcast_ref::<Fault>() {
        Some(fault) => fault.clone(),
        None => Fault::new(class_of(error), me, format!("{error:#}")),
    }
}

fn class_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Class> {
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

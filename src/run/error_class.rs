//! The class of an error, and with it the exit code of whoever ends by it.

use std::io::{Error, ErrorKind};

use chimera_core::analyze::Refusal;
use chimera_core::device::DeviceError;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::interchange::ReadError;
use chimera_core::search::AutoError;

use crate::device::NoThread;
use crate::formats::checkpoint::{Diverged, Unusable};

/// An error that stands for several.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Several {
    /// The class of the worst of them.
    pub class: Class,
    /// All of them, in words.
    pub message: String,
}

/// The class of an error: that of the fault that ended a run, of a refused schedule or checkpoint, of weights that are not
/// finite, of a device that failed, of a disk that is full; all else is wrong usage.
pub fn class_of(error: &anyhow::Error) -> Class {
    error.chain().find_map(class_of_cause).unwrap_or(Class::Usage)
}

/// An error of rank `me` as a fault, which other ranks can be sent.
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

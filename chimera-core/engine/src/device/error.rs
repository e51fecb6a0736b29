//! Errors of devices.

use std::fmt;

use chimera_schedule::ids::Rank;

use crate::fault::{Class, Fault};

/// An error of a device.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device is out of memory.
    #[error("out of memory on {device}: {} for {what}", asked(.asked_bytes))]
    OutOfMemory {
        /// The device, in words.
        device: String,
        /// Purpose of the memory.
        what: String,
        /// Bytes requested; 0 if the device does not report it.
        asked_bytes: u64,
    },
    /// The device or its library reported a failure.
    #[error("{op} failed on {device}: {reason}")]
    Failed {
        /// The device, in words.
        device: String,
        /// The operation.
        op: &'static str,
        /// The library's message.
        reason: String,
    },
    /// Failed to access a file that the device offloads tensors to.
    #[error("{op} failed on {device}: {reason}")]
    File {
        /// The device, in words.
        device: String,
        /// The operation.
        op: &'static str,
        /// The system's message.
        reason: String,
    },
    /// Any other error, with a message that stands on its own.
    #[error("{0}")]
    Other(String),
}

fn asked(bytes: &u64) -> String {
    if *bytes == 0 { "no room".into() } else { format!("{bytes} bytes asked") }
}

/// Turns a device error in a caller's function into a fault; the engine fills in its rank.
impl From<DeviceError> for Fault {
    fn from(error: DeviceError) -> Fault {
        error.into_fault(Rank(0))
    }
}

impl DeviceError {
    /// Wraps any other error, such as one of the framework in which a stage is written.
    ///
    /// ```
    /// use chimera_engine::device::DeviceError;
    ///
    /// let number = "seven".parse::<f64>().map_err(DeviceError::other);
    /// assert_eq!(number.unwrap_err().to_string(), "invalid float literal");
    /// ```
    pub fn other(error: impl fmt::Display) -> DeviceError {
        DeviceError::Other(error.to_string())
    }

    /// Returns the fault that ends the run, as seen by `rank`.
    pub fn into_fault(self, rank: Rank) -> Fault {
        Fault::new(self.class(), rank, self.to_string())
    }

    /// Returns the class of the failure.
    pub fn class(&self) -> Class {
        match self {
            DeviceError::OutOfMemory { .. } => Class::OutOfMemory,
            DeviceError::File { .. } => Class::Io,
            DeviceError::Failed { .. } | DeviceError::Other(_) => Class::Internal,
        }
    }
}

/// The result of every function of a device.
pub type Result<T> = std::result::Result<T, DeviceError>;

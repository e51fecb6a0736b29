//! What goes wrong on a device.

use std::fmt;

use chimera_schedule::ids::Rank;

use crate::fault::{Class, Fault};

/// What went wrong on a device.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has no memory left.
    #[error("out of memory on {device}: {} for {what}", asked(.asked_bytes))]
    OutOfMemory {
        /// The device, in words.
        device: String,
        /// What the memory was for.
        what: String,
        /// How much was asked for; 0 if the device does not say.
        asked_bytes: u64,
    },
    /// The device or its library reported a failure.
    #[error("{op} failed on {device}: {reason}")]
    Failed {
        /// The device, in words.
        device: String,
        /// The operation.
        op: &'static str,
        /// What the library said.
        reason: String,
    },
    /// A file failed to which the device moves what does not fit into its memory.
    #[error("{op} failed on {device}: {reason}")]
    File {
        /// The device, in words.
        device: String,
        /// The operation.
        op: &'static str,
        /// What the system said.
        reason: String,
    },
    /// Something else went wrong, which says itself what and where.
    #[error("{0}")]
    Other(String),
}

fn asked(bytes: &u64) -> String {
    if *bytes == 0 { "no room".into() } else { format!("{bytes} bytes asked") }
}

/// What goes wrong on the device in a caller's function goes on as a fault, whose rank the engine fills in.
impl From<DeviceError> for Fault {
    fn from(error: DeviceError) -> Fault {
        error.into_fault(Rank(0))
    }
}

impl DeviceError {
    /// Any other error, such as that of the framework in which a stage is written.
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

    /// What ends a run, as `rank` sees it.
    pub fn into_fault(self, rank: Rank) -> Fault {
        Fault::new(self.class(), rank, self.to_string())
    }

    /// What kind of failure it is.
    pub fn class(&self) -> Class {
        match self {
            DeviceError::OutOfMemory { .. } => Class::OutOfMemory,
            DeviceError::File { .. } => Class::Io,
            DeviceError::Failed { .. } | DeviceError::Other(_) => Class::Internal,
        }
    }
}

/// What every function of a device returns.
pub type Result<T> = std::result::Result<T, DeviceError>;

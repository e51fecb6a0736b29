//! The bucket that an instruction serves, and the instructions that it waits for.

use super::Instr;
use crate::ir::ids::BucketId;

impl Instr {
    /// The bucket whose sum it starts.
    pub fn reduced(&self) -> Option<BucketId> {
        match *self {
            Instr::Reduce(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// The bucket whose sum it waits for.
    pub fn awaited(&self) -> Option<BucketId> {
        match *self {
            Instr::Await(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// The bucket whose weights it updates.
    pub fn updated(&self) -> Option<BucketId> {
        match *self {
            Instr::Step(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// The instruction that other workers come to before this one ends.
    pub fn counterpart(&self) -> Option<Instr> {
        match *self {
            Instr::Recv(token, channel) => Some(Instr::Send(token, channel)),
            Instr::Await(bucket) => Some(Instr::Reduce(bucket)),
            Instr::Agree => Some(Instr::Agree),
            _ => None,
        }
    }
}

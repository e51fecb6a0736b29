//! The start of a run: ranks compare what they are about to train.

pub(crate) mod compare;
pub(crate) mod handshake;

//! Recovery after the death of a rank.

pub(crate) mod peer_checkpoint;
pub(crate) mod recovery;
pub(crate) mod resume_point;

//! The step sync: what ranks tell each other once per program, and what they conclude.

pub(crate) mod agreement;
pub(crate) mod step_sync;
pub(crate) mod validation;

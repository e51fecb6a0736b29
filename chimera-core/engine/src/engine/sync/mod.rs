//! The step sync: the exchange of all ranks once per program, and its conclusions.

pub(crate) mod agreement;
pub(crate) mod step_sync;
pub(crate) mod validation;

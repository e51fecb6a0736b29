//! Updates of weights, each in one or two passes over memory.

pub(crate) mod adamw;
pub(crate) mod lamb;
pub(crate) mod sgd;

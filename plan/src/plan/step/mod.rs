//! The step that settings describe: a proven program, its units, and its weight updates.

pub(super) mod chain;
pub(super) mod conflicts;
pub(super) mod course;
pub(super) mod preconditioned;
pub(super) mod request;
pub(super) mod training;
pub(super) mod unfit;
pub(super) mod units;

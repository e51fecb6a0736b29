//! The step that settings describe: a proven program, its units, and how it updates weights.

pub(super) mod conflicts;
pub(super) mod course;
pub(super) mod preconditioned;
pub(super) mod request;
pub(super) mod training;
pub(super) mod unfit;
pub(super) mod units;

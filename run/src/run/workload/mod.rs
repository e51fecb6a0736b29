//! The workload of a run: the models of this crate on text, or a model of the caller's own.

pub(super) mod initial;
pub(super) mod own;
pub(super) mod relaid;
pub(super) mod samples;
pub(super) mod subject;
pub(super) mod transformer;

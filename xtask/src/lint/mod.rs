//! Checks that only read the sources.

pub(crate) mod absences;
pub(crate) mod counts;
pub(crate) mod deny;
pub(crate) mod elsewhere;
pub(crate) mod layers;
mod sources;
pub(crate) mod words;

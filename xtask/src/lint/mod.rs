//! Checks that only read the sources.

pub(crate) mod absences;
pub(crate) mod layers;
pub(crate) mod targets;
pub(crate) mod words;

//! What several subcommands share: options, a schedule as they describe it, what is shown, how a process ends.

pub(crate) mod schedule;
pub(crate) mod terminal;
pub(crate) mod training;

//! Code that several subcommands share: options, schedules built from options, output, and exit
//! codes.

pub(crate) mod out;
pub(crate) mod schedule;
pub(crate) mod terminal;
pub(crate) mod training;

//! What several subcommands share: options, a schedule as they describe it, what is shown, how a process ends.

pub(crate) mod bubble;
pub(crate) mod closed_form;
pub(crate) mod comparison;
pub(crate) mod console;
pub(crate) mod costs;
pub(crate) mod drawing;
pub(crate) mod entry;
pub(crate) mod exit;
pub(crate) mod followed;
pub(crate) mod model;
pub(crate) mod network;
pub(crate) mod offered;
pub(crate) mod outcome;
pub(crate) mod own_work;
pub(crate) mod patterns;
pub(crate) mod predicted;
pub(crate) mod profiled;
pub(crate) mod progress;
pub(crate) mod proof;
pub(crate) mod report;
pub(crate) mod scheduled;
pub(crate) mod shape;
pub(crate) mod signed;
pub(crate) mod stop_strings;
pub(crate) mod suggest;
pub(crate) mod within_step;

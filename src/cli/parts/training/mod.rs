//! Training on the command line: the output about a run and about the trained model.

pub(crate) mod bubble;
pub(crate) mod comparison;
pub(crate) mod followed;
pub(crate) mod kernels;
pub(crate) mod learnt;
pub(crate) mod model;
pub(crate) mod model_args;
pub(crate) mod outcome;
mod own_command;
pub(crate) mod predicted;
pub(crate) mod ranks;
pub(crate) mod report;
pub(crate) mod stop_strings;
pub(crate) mod suggest;
pub(crate) mod within_step;
pub(crate) mod written;

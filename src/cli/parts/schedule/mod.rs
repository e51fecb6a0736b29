//! Schedules on the command line: their options, costs and network, and their output.

pub(crate) mod closed_form;
pub(crate) mod costs;
pub(crate) mod drawing;
pub(crate) mod entry;
pub(crate) mod measured_network;
pub(crate) mod network;
pub(crate) mod own_work;
pub(crate) mod profiled;
pub(crate) mod proof;
pub(crate) mod quantity;
pub(crate) mod rank_map;
pub(crate) mod scheduled;
pub(crate) mod shape;
pub(crate) mod topology;
pub(crate) mod wire;

//! The time that a program takes: simulated, on a network, by formula and as measured.

pub mod closed_form;
pub mod critical;
pub mod measured;
pub mod network;
pub mod simulate;
pub mod timeline;
pub(super) mod update_waits;

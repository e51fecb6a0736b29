//! The time that a program takes: simulated, on a network, by formula and as measured.

pub mod closed_form;
pub mod critical;
pub(super) mod end;
pub(super) mod input;
pub(super) mod makers;
pub mod measured;
pub(super) mod moved;
pub mod network;
mod ready;
pub(super) mod shards;
pub mod simulate;
mod slowdown;
pub mod timeline;
pub(super) mod traffic;
pub(super) mod update_waits;

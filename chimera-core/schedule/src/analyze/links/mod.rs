//! Links as resources: a topology on which messages and reductions contend.
//!
//! The rules stand in docs/links.md; another simulator can be written from that page. A message is
//! one flow over the whole path between two devices. Flows that cross the same link share it, so
//! the time of a message depends on what else is under way. Without a topology, nothing here is
//! used: [`NetworkCosts`](super::NetworkCosts) has a formula for each message.

mod collective;
mod contended;
mod error;
mod fabric;
mod fair;
mod fifo;
mod file;
mod flow;
mod load;
mod mapping;
mod presets;
mod shared;
mod step;
mod topology;

pub use super::simulation::traffic::Traffic;
pub use collective::Collective;
pub use contended::simulate_on;
pub use error::TopologyError;
pub use load::{LinkLoad, Loaded};
pub use mapping::{Mapping, map_ranks};
pub use presets::{PRESETS, TopologyPreset};
pub use step::{Contended, LinkedCosts};
pub use topology::{Device, Duplex, Sharing, Topology, TopologyLink, VertexKind};

/// Events whose times differ by less than this part are at one instant, so that rounding decides
/// nothing.
const INSTANT: f64 = 1e-12;

/// Returns the last time that counts as the same instant as `at`.
fn instant(at: f64) -> f64 {
    at + at.abs() * INSTANT
}

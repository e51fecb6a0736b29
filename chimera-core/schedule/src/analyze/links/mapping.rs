//! The search for the devices of ranks: two ranks change places as long as that shortens the step.

use super::contended::simulate_on;
use super::error::TopologyError;
use super::topology::Topology;
use crate::analyze::simulation::end::behind_makespan;
use crate::analyze::simulation::traffic::Traffic;
use crate::costs::{Costs, is_shorter};
use crate::program::Program;

/// The result of the search: a topology with a device for each rank.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The topology, with a device for each rank of the job.
    pub topology: Topology,
    /// Seconds of a step with the ranks where they were at first.
    pub given_s: f64,
    /// Seconds of a step with the devices found, at most `given_s`.
    pub step_s: f64,
    /// Number of simulated steps.
    pub n_simulated: usize,
}

/// Searches for the devices on which a step of `width` groups is shortest, as [`Mapping::search`]
/// does.
///
/// # Errors
/// If the topology is not sound, or has too few ranks.
pub fn map_ranks(
    program: &Program,
    costs: &impl Costs,
    traffic: &Traffic,
    topology: &Topology,
    width: usize,
    most: usize,
) -> Result<Mapping, TopologyError> {
    Mapping::search(topology, program.rows.len() * width.max(1), most, |topology| {
        let linked = simulate_on(program, costs, traffic, topology, width)?;
        let after = behind_makespan(program, &linked.timeline, &linked.costs(costs));
        Ok(linked.timeline.makespan() + after)
    })
}

impl Mapping {
    /// Searches for the devices of ranks with which `step` is shortest. In each round two ranks
    /// change places, or one takes a device that has none: the change that shortens the step most.
    /// The search ends when no change helps, or after `most` simulated steps, including the one
    /// before any change. If a round has more changes than steps are left, it tries evenly spaced
    /// ones.
    ///
    /// # Errors
    /// If the step fails before any change. Changes that fail are left out.
    pub fn search<E>(
        topology: &Topology,
        n_ranks: usize,
        most: usize,
        mut step: impl FnMut(&Topology) -> Result<f64, E>,
    ) -> Result<Mapping, E> {
        let given_s = step(topology)?;
        let topology = named(topology, n_ranks);
        let mut found = Mapping { topology, given_s, step_s: given_s, n_simulated: 1 };
        loop {
            let changes = PlaceChange::all(&found.topology);
            let left = most.saturating_sub(found.n_simulated);
            if changes.is_empty() || left == 0 {
                return Ok(found);
            }
            let mut best: Option<(f64, Topology)> = None;
            for change in changes.iter().step_by(changes.len().div_ceil(left)) {
                let changed = change.of(&found.topology);
                // A free device may have no path to the others.
                let step_s = step(&changed).unwrap_or(f64::INFINITY);
                found.n_simulated += 1;
                let shortest = best.as_ref().map_or(found.step_s, |(shortest, _)| *shortest);
                if is_shorter(step_s, shortest) {
                    best = Some((step_s, changed));
                }
            }
            let Some((step_s, topology)) = best else { return Ok(found) };
            (found.step_s, found.topology) = (step_s, topology);
        }
    }
}

/// Returns a topology that names the device of each rank of a job.
fn named(topology: &Topology, n_ranks: usize) -> Topology {
    let mut named = topology.clone();
    if named.ranks.is_empty() {
        named.ranks = topology.devices.iter().map(|device| device.name.clone()).collect();
    }
    named.ranks.truncate(n_ranks);
    named
}

/// A change of places.
enum PlaceChange {
    /// Two ranks change places.
    Swap(usize, usize),
    /// A rank moves to this free device.
    Move(usize, String),
}

impl PlaceChange {
    /// Returns every change that gives a rank another device.
    fn all(topology: &Topology) -> Vec<PlaceChange> {
        let ranks = &topology.ranks;
        let mut changes = Vec::new();
        for (one, device) in ranks.iter().enumerate() {
            let others = (one + 1..ranks.len()).filter(|other| ranks[*other] != *device);
            changes.extend(others.map(|other| PlaceChange::Swap(one, other)));
        }
        let free = topology.devices.iter().filter(|device| !ranks.contains(&device.name));
        for device in free {
            changes
                .extend((0..ranks.len()).map(|rank| PlaceChange::Move(rank, device.name.clone())));
        }
        changes
    }

    /// Returns a topology with this change.
    fn of(&self, topology: &Topology) -> Topology {
        let mut changed = topology.clone();
        match self {
            PlaceChange::Swap(one, other) => changed.ranks.swap(*one, *other),
            PlaceChange::Move(rank, device) => changed.ranks[*rank].clone_from(device),
        }
        changed
    }
}

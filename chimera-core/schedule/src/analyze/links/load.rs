//! The load of links over time.

use super::topology::Resource;

/// The use of one link, or of one direction of it.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkLoad {
    /// Name of the link: the ends, with `>` in the direction of the flows, or `-` if both share it.
    pub name: String,
    /// Whether several flows had to share it at some time.
    pub is_contended: bool,
    /// Times of use, in order, not overlapping.
    pub loaded: Vec<Loaded>,
}

/// A time during which the same flows cross a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Loaded {
    /// Start, in seconds.
    pub from: f64,
    /// End, in seconds.
    pub to: f64,
    /// Flows that cross it, or that wait for it.
    pub n_flows: usize,
    /// The fraction of the bandwidth that they use.
    pub used: f64,
}

/// The loads of all resources, while they are recorded.
#[derive(Debug)]
pub(super) struct LinkLoads(Vec<LinkLoad>);

impl LinkLoads {
    pub(super) fn of(resources: &[Resource]) -> LinkLoads {
        let load = |resource: &Resource| LinkLoad {
            name: resource.name.clone(),
            is_contended: false,
            loaded: Vec::new(),
        };
        LinkLoads(resources.iter().map(load).collect())
    }

    /// Adds a time of use.
    pub(super) fn add(&mut self, resource: usize, next: Loaded) {
        if next.to <= next.from {
            return;
        }
        let load = &mut self.0[resource];
        load.is_contended |= next.n_flows > 1;
        match load.loaded.last_mut() {
            Some(last)
                if last.to >= next.from
                    && (last.n_flows, last.used) == (next.n_flows, next.used) =>
            {
                last.to = next.to;
            }
            _ => load.loaded.push(next),
        }
    }

    /// Adds a flow that waits from `at` on for a link that another uses.
    pub(super) fn wait(&mut self, resource: usize, at: f64) {
        let load = &mut self.0[resource];
        let Some(last) = load.loaded.last_mut() else { return };
        load.is_contended = true;
        let with_it = Loaded { from: at.max(last.from), n_flows: last.n_flows + 1, ..*last };
        if with_it.from > last.from {
            last.to = with_it.from;
            load.loaded.push(with_it);
        } else {
            *last = with_it;
        }
    }

    /// Returns the loads of the links that were used.
    pub(super) fn used(self) -> Vec<LinkLoad> {
        self.0.into_iter().filter(|load| !load.loaded.is_empty()).collect()
    }
}

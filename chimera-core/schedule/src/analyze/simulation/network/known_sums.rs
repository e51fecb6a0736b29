//! What sums take on a network, each computed once for all stages whose replicas lie alike.

use rustc_hash::FxHashMap;

/// What one sum takes.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct ReductionTime {
    pub(super) takes: f64,
    /// By node of the group: how long the sum has the node's link.
    pub(super) links: Vec<(usize, f64)>,
}

/// The sums that have been computed, of groups with so many nodes.
pub(super) struct KnownSums {
    n_nodes: usize,
    known: FxHashMap<Alike, (usize, ReductionTime)>,
}

/// What a sum's time depends on: on which node of its group each member is, counted from that of the first one, and bytes. All
/// groups lie alike, and which nodes these are only says whose links are busy.
#[derive(PartialEq, Eq, Hash)]
struct Alike {
    nodes: Vec<usize>,
    n_bytes: usize,
}

impl KnownSums {
    pub(super) fn of(n_nodes: usize) -> KnownSums {
        KnownSums { n_nodes, known: FxHashMap::default() }
    }

    /// What a sum of so many bytes takes whose members in a group are on these nodes, computed if none like it is known.
    pub(super) fn sum(
        &mut self,
        mut nodes: Vec<usize>,
        n_bytes: usize,
        computed: impl FnOnce() -> ReductionTime,
    ) -> ReductionTime {
        let n_nodes = self.n_nodes;
        let first = nodes.first().copied().unwrap_or(0);
        nodes.iter_mut().for_each(|node| *node = (*node + n_nodes - first) % n_nodes);
        let (of, sum) =
            self.known.entry(Alike { nodes, n_bytes }).or_insert_with(|| (first, computed()));
        let moved = |(link, busy): &(usize, f64)| ((link + n_nodes - *of + first) % n_nodes, *busy);
        let mut links: Vec<_> = sum.links.iter().map(moved).collect();
        links.sort_by_key(|(link, _)| *link);
        ReductionTime { takes: sum.takes, links }
    }
}

//! Times of sums on a network, each computed once for all stages whose replicas are on similar
//! nodes.

use rustc_hash::FxHashMap;

/// The time of one sum.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct ReductionTime {
    pub(super) takes: f64,
    /// The time for which the sum occupies each node's link, by node of the group.
    pub(super) links: Vec<(usize, f64)>,
}

/// The sums that have been computed, in groups of `n_nodes` nodes.
pub(super) struct KnownSums {
    n_nodes: usize,
    known: FxHashMap<Alike, (usize, ReductionTime)>,
}

/// Everything that a sum's time depends on: bytes, and the node of each member in its group,
/// relative to the first member's. All groups have the same layout, and the absolute nodes only
/// decide which links are busy.
#[derive(PartialEq, Eq, Hash)]
struct Alike {
    nodes: Vec<usize>,
    n_bytes: usize,
}

impl KnownSums {
    pub(super) fn of(n_nodes: usize) -> KnownSums {
        KnownSums { n_nodes, known: FxHashMap::default() }
    }

    /// Time of a sum of `n_bytes` among members on `nodes` of a group, cached.
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

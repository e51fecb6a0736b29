//! The graph of a model's stages: a chain, or any graph without cycles.

use std::fmt;

use smallvec::SmallVec;

use crate::ir::ids::StageId;

/// Edges between stages, the stages that begin with the samples, and the stages that have a loss.
///
/// Stages are numbered so that every edge goes to a later stage: an order of ops that is sound for
/// a chain of as many stages is sound for the graph. A stage may have any number of input and
/// output edges, and a loss as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageGraph {
    /// The neighbours of each stage.
    edges: Vec<Neighbours>,
}

impl StageGraph {
    /// The chain of `n_stages` stages: each feeds the next one, the first begins with the samples
    /// and the last has the loss.
    ///
    /// # Panics
    /// If there are no stages, or more than 65,535.
    pub fn chain(n_stages: usize) -> StageGraph {
        let last = n_stages.saturating_sub(1) as u16;
        let edges: Vec<_> = (0..last).map(|stage| (stage, stage + 1)).collect();
        match StageGraph::new(n_stages, &[0], &edges, &[last]) {
            Ok(chain) => chain,
            Err(e) => panic!("{e}"),
        }
    }

    /// The graph of `n_stages` stages with an edge for each pair of `edges` and a loss at each of
    /// `losses`. The stages in `sources` have no input edge and begin with the samples.
    ///
    /// # Errors
    /// [`GraphError`], which names the edge or stage at fault.
    pub fn new(
        n_stages: usize,
        sources: &[u16],
        edges: &[(u16, u16)],
        losses: &[u16],
    ) -> Result<StageGraph, GraphError> {
        if n_stages == 0 || n_stages > usize::from(u16::MAX) {
            return Err(GraphError::Size(n_stages));
        }
        let ends = edges.iter().flat_map(|(from, to)| [from, to]);
        let mut named = ends.chain(sources).chain(losses).copied();
        if let Some(stage) = named.find(|stage| usize::from(*stage) >= n_stages) {
            return Err(GraphError::Unknown { stage: StageId(stage), n_stages });
        }
        if let Some(&(from, to)) = edges.iter().find(|(from, to)| from >= to) {
            return Err(GraphError::GoesBack { from: StageId(from), to: StageId(to) });
        }
        let loss = n_stages as u16;
        let mut sorted: Vec<_> = edges.to_vec();
        sorted.extend(losses.iter().map(|stage| (*stage, loss)));
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let (from, to) = (StageId(twice[0].0), StageId(twice[0].1));
            return Err(if to.0 == loss {
                GraphError::NamedTwice { stage: from, list: "losses" }
            } else {
                GraphError::EdgeTwice { from, to }
            });
        }
        let mut graph = StageGraph { edges: vec![Neighbours::default(); n_stages] };
        for (from, to) in sorted.into_iter().map(|(from, to)| (StageId(from), StageId(to))) {
            graph.edges[from.index()].outputs.push(to);
            if to.0 != loss {
                graph.edges[to.index()].inputs.push(from);
            }
        }
        graph.begins_at(sources).map(|()| graph)
    }

    /// Checks that all `sources` and no other stages have no input edge, and that every stage leads
    /// somewhere.
    fn begins_at(&self, sources: &[u16]) -> Result<(), GraphError> {
        let mut begins = vec![false; self.n_stages()];
        for stage in sources.iter().copied().map(StageId) {
            if std::mem::replace(&mut begins[stage.index()], true) {
                return Err(GraphError::NamedTwice { stage, list: "sources" });
            }
            if let Some(&from) = self.inputs(stage).first() {
                return Err(GraphError::FedSource { stage, from });
            }
        }
        for stage in self.stages() {
            if self.inputs(stage).is_empty() && !begins[stage.index()] {
                return Err(GraphError::Unreached(stage));
            }
            if self.outputs(stage).is_empty() {
                return Err(GraphError::DeadEnd(stage));
            }
        }
        Ok(())
    }

    /// Number of stages, S.
    pub fn n_stages(&self) -> usize {
        self.edges.len()
    }

    /// The number of stages, S. It stands for the loss among the outputs of a stage that has one.
    pub fn loss(&self) -> StageId {
        StageId(self.n_stages() as u16)
    }

    /// The stages that feed `stage`, ascending; empty for a source, and for a stage that does not
    /// exist.
    pub fn inputs(&self, stage: StageId) -> &[StageId] {
        self.edges.get(stage.index()).map_or(&[], |edges| &edges.inputs)
    }

    /// The stages that `stage` feeds, ascending, followed by [`loss`](StageGraph::loss) if it has
    /// one.
    pub fn outputs(&self, stage: StageId) -> &[StageId] {
        self.edges.get(stage.index()).map_or(&[], |edges| &edges.outputs)
    }

    /// Returns true if `stage` has a loss.
    pub fn has_loss(&self, stage: StageId) -> bool {
        self.outputs(stage).last() == Some(&self.loss())
    }

    /// Returns true if each stage feeds only the next one, and only the last has a loss.
    pub fn is_chain(&self) -> bool {
        let is_next = |stage: StageId| matches!(self.outputs(stage), [to] if to.0 == stage.0 + 1);
        self.stages().all(is_next)
    }

    /// All stages, in order.
    pub fn stages(&self) -> impl Iterator<Item = StageId> + use<> {
        (0..self.loss().0).map(StageId)
    }

    /// The stages that begin with the samples, ascending.
    pub fn sources(&self) -> impl Iterator<Item = StageId> {
        self.stages().filter(|stage| self.inputs(*stage).is_empty())
    }

    /// The edges between stages, sorted by their start, then by their end.
    pub fn edges(&self) -> impl Iterator<Item = (StageId, StageId)> {
        let to = |from| self.outputs(from).iter().map(move |to| (from, *to));
        self.stages().flat_map(to).filter(|(_, to)| *to != self.loss())
    }

    /// The stages that have a loss, ascending.
    pub fn losses(&self) -> impl Iterator<Item = StageId> {
        self.stages().filter(|stage| self.has_loss(*stage))
    }
}

/// The edges in one line, such as `0-1, 0-3, 1-2, 2-3; losses 3`.
impl fmt::Display for StageGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let edges: Vec<String> = self.edges().map(|(a, b)| format!("{}-{}", a.0, b.0)).collect();
        let losses: Vec<String> = self.losses().map(|stage| stage.0.to_string()).collect();
        let edges = if edges.is_empty() { "none".to_string() } else { edges.join(", ") };
        write!(f, "{edges}; losses {}", losses.join(", "))
    }
}

/// A mistake in the edges, sources or losses of a graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// There are no stages, or more than ids can number.
    #[error("a graph has 1 to {max} stages, not {0}", max = u16::MAX)]
    Size(usize),
    /// Something names a stage that does not exist.
    #[error("{stage} does not exist: there are {n_stages} stages, counted from 0")]
    Unknown {
        /// The stage.
        stage: StageId,
        /// The number of stages.
        n_stages: usize,
    },
    /// An edge goes to an earlier stage, or to its own start.
    #[error(
        "the edge from {from} to {to} goes back: number the stages so that each feeds only later \
         ones, which excludes circles"
    )]
    GoesBack {
        /// The stage that the edge begins at.
        from: StageId,
        /// The stage that the edge ends at.
        to: StageId,
    },
    /// An edge occurs twice.
    #[error("the edge from {from} to {to} occurs twice: one edge carries one value")]
    EdgeTwice {
        /// The stage that the edge begins at.
        from: StageId,
        /// The stage that the edge ends at.
        to: StageId,
    },
    /// A stage is named twice in a list.
    #[error("{stage} occurs twice among the {list}")]
    NamedTwice {
        /// The stage.
        stage: StageId,
        /// `sources` or `losses`.
        list: &'static str,
    },
    /// A source has an input edge.
    #[error("{stage} is a source, but {from} feeds it: a source reads only the samples")]
    FedSource {
        /// The source.
        stage: StageId,
        /// The stage that feeds it.
        from: StageId,
    },
    /// A stage has no input edge and is not among the sources.
    #[error(
        "nothing reaches {0}: give it an edge from an earlier stage, or name it among the sources"
    )]
    Unreached(StageId),
    /// A stage has neither an output edge nor a loss.
    #[error("{0} leads nowhere: give it an edge to a later stage, or name it among the losses")]
    DeadEnd(StageId),
}

/// The other ends of a stage's edges, ascending.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Neighbours {
    inputs: SmallVec<[StageId; 2]>,
    outputs: SmallVec<[StageId; 2]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_one() {
        for n in [1, 2, 5] {
            let chain = StageGraph::chain(n);
            assert!(chain.is_chain() && chain.n_stages() == n);
            assert_eq!(chain.edges().count(), n - 1);
            assert_eq!(chain.losses().collect::<Vec<_>>(), [StageId(n as u16 - 1)]);
            assert_eq!(chain.sources().collect::<Vec<_>>(), [StageId(0)]);
        }
    }

    #[test]
    fn a_graph_knows_its_neighbours() {
        let towers = StageGraph::new(5, &[0, 2], &[(0, 1), (3, 4), (1, 4), (2, 3)], &[4, 1]);
        let towers = towers.expect("a graph");
        assert_eq!(towers.to_string(), "0-1, 1-4, 2-3, 3-4; losses 1, 4");
        assert_eq!(towers.models(), [0; 5]);
        let apart = StageGraph::new(2, &[0, 1], &[], &[0, 1]).expect("a graph");
        assert_eq!(apart.to_string(), "none; losses 0, 1");
        let crossed = StageGraph::new(5, &[0, 1], &[(0, 3), (1, 2), (2, 4)], &[3, 4]);
        assert_eq!(crossed.expect("a graph").models(), [0, 1, 1, 0, 1]);
        assert_eq!(towers.inputs(StageId(4)), [StageId(1), StageId(3)]);
        assert_eq!(towers.outputs(StageId(1)), [StageId(4), towers.loss()]);
        assert_eq!(towers.sources().collect::<Vec<_>>(), [StageId(0), StageId(2)]);
        assert!(towers.has_loss(StageId(1)) && !towers.has_loss(StageId(3)));
        assert!(!towers.is_chain());
        assert!(towers.inputs(StageId(9)).is_empty() && towers.outputs(towers.loss()).is_empty());
    }

    #[test]
    fn lists_that_make_no_graph_are_refused() {
        let refused = |n, sources: &[u16], edges: &[(u16, u16)], losses: &[u16]| {
            StageGraph::new(n, sources, edges, losses).expect_err("refused").to_string()
        };
        for (refusal, says) in [
            (refused(0, &[], &[], &[]), "1 to 65535 stages, not 0"),
            (refused(65_536, &[], &[], &[]), "not 65536"),
            (refused(2, &[0], &[(0, 2)], &[1]), "stage 2 does not exist: there are 2"),
            (refused(2, &[7], &[(0, 1)], &[1]), "stage 7 does not exist"),
            (refused(2, &[0], &[(0, 1)], &[2]), "stage 2 does not exist"),
            (refused(3, &[0], &[(0, 1), (2, 1)], &[2]), "from stage 2 to stage 1 goes back"),
            (refused(2, &[0], &[(0, 1), (1, 1)], &[1]), "from stage 1 to stage 1 goes back"),
            (refused(2, &[0], &[(0, 1), (0, 1)], &[1]), "from stage 0 to stage 1 occurs twice"),
            (refused(2, &[0], &[(0, 1)], &[1, 1]), "stage 1 occurs twice among the losses"),
            (refused(2, &[0, 0], &[(0, 1)], &[1]), "stage 0 occurs twice among the sources"),
            (refused(2, &[0, 1], &[(0, 1)], &[1]), "stage 1 is a source, but stage 0 feeds it"),
            (refused(3, &[0], &[(0, 2)], &[1, 2]), "nothing reaches stage 1"),
            (refused(3, &[0], &[(0, 1), (0, 2)], &[2]), "stage 1 leads nowhere"),
        ] {
            assert!(refusal.contains(says), "{refusal}");
        }
    }
}

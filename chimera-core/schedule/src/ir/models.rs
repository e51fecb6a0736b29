//! The models of a graph: its parts without an edge between them.

use super::graph::StageGraph;

impl StageGraph {
    /// The model of each stage. Stages that edges connect are one model. Models are numbered from 0
    /// in the order of their first stages.
    pub fn models(&self) -> Vec<usize> {
        let mut model_of: Vec<Option<usize>> = vec![None; self.n_stages()];
        let mut n_models = 0;
        for first in self.stages() {
            if model_of[first.index()].is_some() {
                continue;
            }
            let mut reached = vec![first];
            while let Some(stage) = reached.pop() {
                if model_of[stage.index()].replace(n_models).is_none() {
                    let neighbours = self.inputs(stage).iter().chain(self.outputs(stage));
                    reached.extend(neighbours.filter(|other| **other != self.loss()));
                }
            }
            n_models += 1;
        }
        model_of.into_iter().flatten().collect()
    }

    /// Number of [models](StageGraph::models).
    pub fn n_models(&self) -> usize {
        self.models().into_iter().max().map_or(0, |last| last + 1)
    }
}

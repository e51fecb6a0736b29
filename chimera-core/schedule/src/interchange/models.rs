//! Checks of the numbers of micro-batches of models in a timetable's JSON.

use super::counts::same;
use super::form::File;
use super::json::{ReadError, invalid};
use crate::ir::graph::StageGraph;

impl File {
    /// Checks the numbers of micro-batches of models, if they are given.
    pub(super) fn check_models(&self, graph: &StageGraph) -> Result<(), ReadError> {
        let given = &self.micro_batches_of;
        if given.is_empty() {
            return Ok(());
        }
        let n_models = graph.n_models();
        same("micro_batches_of", given.len(), n_models, "models of the graph")?;
        if given.contains(&0) || given.iter().max() != Some(&self.micro_batches) {
            let reason = format!(
                "gives each model 1 or more, and the largest has all {} (micro_batches)",
                self.micro_batches
            );
            return Err(invalid("micro_batches_of", reason));
        }
        Ok(())
    }
}

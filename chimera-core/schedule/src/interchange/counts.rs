//! Checks of the numbers in a timetable's JSON against one another.

use super::form::{Edges, File, MAX_COUNT, Object, Rule, Two};
use super::json::{MAX_NAME, ReadError, invalid, is_unprintable};
use crate::ir::graph::StageGraph;
use crate::ir::ids::StageId;
use crate::ir::update::Update;

/// Most units that a micro-batch is cut into.
const MAX_UNITS: u32 = 1 << 16;

impl File {
    /// Checks the counts at the top against the actual arrays, and against their limits.
    pub(super) fn check_counts(&self) -> Result<(), ReadError> {
        if self.schedule.len() > MAX_NAME || self.schedule.chars().any(is_unprintable) {
            let reason = format!(
                "has more than {MAX_NAME} bytes or control characters, such as those that change \
                 the direction of text"
            );
            return Err(invalid("schedule", reason));
        }
        for (path, count) in [("depth", self.depth), ("stages", self.stages), ("pipes", self.pipes)]
        {
            if !(1..=MAX_COUNT).contains(&count) {
                return Err(invalid(path, format!("{count} is not in 1 to {MAX_COUNT}")));
            }
        }
        same("rows", self.rows.len(), self.depth, "depth")?;
        same("placement", self.placement.len(), self.pipes, "pipes")?;
        for (pipe, workers) in self.placement.iter().enumerate() {
            same(&format!("placement[{pipe}]"), workers.len(), self.stages, "stages")?;
            for (stage, worker) in workers.iter().enumerate() {
                let path = || format!("placement[{pipe}][{stage}]");
                below(path, "worker", worker.index(), self.depth, "depth")?;
            }
        }
        if let Some(counted) = self.counted_stages.filter(|counted| *counted > self.stages) {
            let reason = format!("{counted} is not in 1 to {} (stages)", self.stages);
            return Err(invalid("counted_stages", reason));
        }
        for (at, Two(pipe, stage)) in self.selective.iter().enumerate() {
            let path = || format!("selective[{at}]");
            below(path, "pipe", pipe.index(), self.pipes, "pipes")?;
            below(path, "stage", stage.index(), self.stages, "stages")?;
            if at > 0 && self.selective[at - 1] >= Two(*pipe, *stage) {
                return Err(invalid(path(), "does not follow the one before"));
            }
        }
        for (at, stage) in self.frozen.iter().enumerate() {
            let path = || format!("frozen[{at}]");
            below(path, "stage", stage.index(), self.stages, "stages")?;
            if at > 0 && self.frozen[at - 1] >= *stage {
                return Err(invalid(path(), "does not follow the one before"));
            }
        }
        Ok(())
    }

    pub(super) fn units_per_micro(&self) -> Result<u32, ReadError> {
        let units = (1.0 / self.unit).round();
        let is_in_range = (1.0..=f64::from(MAX_UNITS)).contains(&units);
        if is_in_range && (units * self.unit - 1.0).abs() < 1e-9 {
            Ok(units as u32)
        } else {
            let unit = self.unit;
            let reason = format!("{unit} is not 1, 0.5 or another 1/k, with k up to {MAX_UNITS}");
            Err(invalid("unit", reason))
        }
    }

    /// The rule of updates, if its window consists of whole steps.
    pub(super) fn update(&self) -> Result<Update, ReadError> {
        let n_steps = match (self.update, self.steps) {
            (Rule::Flush, None) => return Ok(Update::Flush),
            (Rule::Flush, Some(_)) => {
                return Err(invalid("steps", "a schedule with a flush has one step"));
            }
            (_, None) => return Err(invalid("steps", "is missing, and `update` needs it")),
            (_, Some(n_steps)) => n_steps,
        };
        if n_steps == 0 || !self.micro_batches.is_multiple_of(n_steps) {
            let reason = format!("{n_steps} does not divide micro_batches, {}", self.micro_batches);
            return Err(invalid("steps", reason));
        }
        Ok(match self.update {
            Rule::EachStep => Update::EachStep { n_steps },
            Rule::DoubleBuffer => Update::DoubleBuffer { n_steps },
            Rule::Newest => Update::Newest { n_steps },
            Rule::Predicted => Update::Predicted { n_steps },
            Rule::Flush | Rule::Stash => Update::Stash { n_steps },
        })
    }

    /// The given graph of stages, or a chain.
    pub(super) fn graph(&self) -> Result<StageGraph, ReadError> {
        let Some(Object(Edges { sources, edges, losses })) = &self.graph else {
            return Ok(StageGraph::chain(self.stages));
        };
        let ids = |stages: &[StageId]| stages.iter().map(|stage| stage.0).collect::<Vec<_>>();
        let edges: Vec<_> = edges.iter().map(|Two(from, to)| (from.0, to.0)).collect();
        StageGraph::new(self.stages, &ids(sources), &edges, &ids(losses))
            .map_err(|e| invalid("graph", e.to_string()))
    }

    /// Checks the number of units, which must not exceed what the ops of the rows can cover.
    pub(super) fn check_units(
        &self,
        units_per_micro: u32,
        graph: &StageGraph,
    ) -> Result<u32, ReadError> {
        let n_units = u64::from(self.micro_batches) * u64::from(units_per_micro);
        let needed = if self.micro_batches_of.is_empty() {
            n_units.saturating_mul(self.stages as u64)
        } else {
            let of_model = |model: usize| u64::from(self.micro_batches_of[model]);
            let micros: u64 = graph.models().into_iter().map(of_model).sum();
            micros.saturating_mul(u64::from(units_per_micro))
        };
        let ops = self.rows.iter().flatten().flat_map(|cell| cell.ops());
        let present = ops.map(|op| u64::from(op.span.len)).sum();
        if n_units == 0 {
            return Err(invalid("micro_batches", "0 is less than 1"));
        }
        match u32::try_from(n_units) {
            Ok(n_units) if needed <= present => Ok(n_units),
            _ => {
                let reason = format!(
                    "{} at {} stages are more than the rows have ops for",
                    self.micro_batches, self.stages
                );
                Err(invalid("micro_batches", reason))
            }
        }
    }

    pub(super) fn check_cells(&self, n_units: u32) -> Result<(), ReadError> {
        for (worker, row) in self.rows.iter().enumerate() {
            for (at, cell) in row.iter().enumerate() {
                let path = || format!("rows[{worker}][{at}]");
                for op in cell.ops() {
                    below(path, "pipe", op.pipe.index(), self.pipes, "pipes")?;
                    below(path, "stage", op.stage.index(), self.stages, "stages")?;
                    let last = u64::from(op.span.start) + u64::from(op.span.len) - 1;
                    if last >= u64::from(n_units) {
                        let reason = format!("micro-batch {last} is not below {n_units}");
                        return Err(invalid(path(), reason));
                    }
                }
            }
        }
        Ok(())
    }
}

pub(super) fn same(path: &str, len: usize, count: usize, of: &str) -> Result<(), ReadError> {
    if len == count {
        Ok(())
    } else {
        let entries = if len == 1 { "entry" } else { "entries" };
        Err(invalid(path, format!("{len} {entries}, but {of} is {count}")))
    }
}

fn below(
    path: impl Fn() -> String,
    what: &str,
    id: usize,
    count: usize,
    of: &str,
) -> Result<(), ReadError> {
    if id < count {
        Ok(())
    } else {
        Err(invalid(path(), format!("{what} {id} is not below {count} ({of})")))
    }
}

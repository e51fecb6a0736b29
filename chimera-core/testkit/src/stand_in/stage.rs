//! A stage that computes nothing and sleeps for its time.

use std::sync::Arc;
use std::time::Duration;

use chimera_engine::device::Result;
use chimera_engine::device::reference::Tensor;
use chimera_engine::stage::{
    Branched, Data, DynBranched, DynSelective, DynSliced, DynSplittable, Init, Left, Micro, Output,
    Param, Selective, Slice, SliceGradients, Sliced, Splittable, Stage,
};
use chimera_schedule::costs::{Costs, of_cell};
use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::{StageId, WorkerId};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::program::{Instr, Program};
use rustc_hash::FxHashMap;

use super::pace::Pace;

/// Durations of the calls of a worker's stages, by kind of op, stage, and unit.
pub(super) struct Times {
    calls: FxHashMap<(Kind, StageId, u32), Duration>,
    n_steps: u32,
    units_per_step: u32,
}

impl Times {
    /// Computes the times of a worker's cells.
    pub(super) fn of(
        program: &Program,
        worker: WorkerId,
        costs: &impl Costs,
        seconds: impl Fn(f64) -> Duration,
    ) -> Times {
        let window = program.window();
        let (n_steps, units_per_step) = (window.n_steps(), window.units_per_step());
        let mut calls = FxHashMap::default();
        let cells = program.rows()[worker.index()].iter().filter_map(|instr| match instr {
            Instr::Run(cell) => Some(cell),
            _ => None,
        });
        for cell in cells {
            for (op, takes) in shares(worker, cell, costs) {
                match op.kind {
                    // The engine calls a forward once, and all other ops unit by unit.
                    Kind::Forward => {
                        calls.insert((op.kind, op.stage, op.span.start), seconds(takes));
                    }
                    kind => {
                        let each = seconds(takes / f64::from(op.span.len));
                        // The weight half follows at once, and adds no time.
                        let kind = if kind == Kind::Backward { Kind::BackwardInput } else { kind };
                        calls.extend(op.span.units().map(|unit| ((kind, op.stage, unit), each)));
                    }
                }
            }
        }
        Times { calls, n_steps, units_per_step }
    }

    /// Duration of a piece of work beside the training.
    pub(super) fn of_piece(&self, op: &Op) -> Duration {
        self.calls.get(&(op.kind, op.stage, op.span.start)).copied().unwrap_or_default()
    }

    fn of_call(&self, kind: Kind, stage: StageId, micro: &Micro<'_>, slice: u64) -> Duration {
        let step = micro.step % u64::from(self.n_steps);
        let unit = step * u64::from(self.units_per_step) + micro.sample + slice;
        self.calls.get(&(kind, stage, unit as u32)).copied().unwrap_or_default()
    }
}

/// Number of calls that the engine makes of a stage for an op.
pub(super) fn n_calls(op: &Op) -> usize {
    let units = usize::from(op.span.len);
    match op.kind {
        Kind::Forward => 1,
        Kind::Backward => 2 * units,
        Kind::BackwardInput | Kind::BackwardWeight | Kind::Recompute => units,
        Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return => units,
        Kind::Work(_) => 1,
    }
}

/// The ops of a cell, with the share of its cost that each takes.
fn shares(worker: WorkerId, cell: &Cell, costs: &impl Costs) -> Vec<(Op, f64)> {
    let whole = of_cell(costs, worker, cell);
    let ops: Vec<Op> = cell.ops().collect();
    let alone: Vec<f64> = ops.iter().map(|op| costs.op(worker, op)).collect();
    let sum: f64 = alone.iter().sum();
    let n_ops = ops.len() as f64;
    let share = |alone: f64| if sum > 0.0 { whole * alone / sum } else { whole / n_ops };
    ops.into_iter().zip(alone.into_iter().map(share)).collect()
}

/// One stage of one worker.
pub(super) struct StandIn {
    id: StageId,
    n_inputs: usize,
    n_outputs: usize,
    has_loss: bool,
    params: Vec<Param>,
    times: Arc<Times>,
    pace: Arc<Pace>,
}

impl StandIn {
    pub(super) fn new(
        id: StageId,
        graph: &StageGraph,
        times: &Arc<Times>,
        pace: &Arc<Pace>,
    ) -> StandIn {
        StandIn {
            id,
            n_inputs: graph.inputs(id).len(),
            n_outputs: graph.outputs(id).len(),
            has_loss: graph.has_loss(id),
            params: vec![Param::new(format!("stage.{}", id.0), [1], Init::Zeros)],
            times: Arc::clone(times),
            pace: Arc::clone(pace),
        }
    }

    fn work(&self, kind: Kind, micro: &Micro<'_>) {
        self.work_on(kind, micro, 0);
    }

    /// The output of a stage of a chain.
    fn output(&self, micro: &Micro<'_>) -> Output<Tensor> {
        if self.has_loss {
            Output::Loss { loss: Tensor::zeros(&[1]), grad: row(micro) }
        } else {
            Output::Activation(row(micro))
        }
    }

    /// Sleeps for a call on a slice. A micro-batch is represented by one sample per unit, so a
    /// slice is the unit that follows the slices before it.
    fn work_on(&self, kind: Kind, micro: &Micro<'_>, slice: u64) {
        self.pace.work(self.times.of_call(kind, self.id, micro, slice));
    }
}

/// A number for each unit of a micro-batch.
fn row(micro: &Micro<'_>) -> Tensor {
    Tensor::zeros(&[micro.input.len(), 1])
}

impl Stage for StandIn {
    type Tensor = Tensor;
    type Item = u32;
    /// The number of the slice; 0 for whole sequences.
    type Saved = u64;
    type Deferred = u64;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        _: &[Tensor],
        micro: &Micro<'_>,
        _: Option<Tensor>,
    ) -> Result<(Output<Tensor>, u64)> {
        self.work(Kind::Forward, micro);
        Ok((self.output(micro), 0))
    }

    fn backward_input(
        &self,
        _: &[Tensor],
        micro: &Micro<'_>,
        slice: u64,
        _: Tensor,
    ) -> Result<(Option<Tensor>, u64)> {
        self.work_on(Kind::BackwardInput, micro, slice);
        Ok(((self.n_inputs > 0).then(|| row(micro)), slice))
    }

    fn backward_weight(&self, micro: &Micro<'_>, slice: u64, _: &mut [Tensor]) -> Result<()> {
        self.work_on(Kind::BackwardWeight, micro, slice);
        Ok(())
    }

    fn recompute(&self, _: &[Tensor], micro: &Micro<'_>, _: Option<Tensor>) -> Result<u64> {
        self.work(Kind::Recompute, micro);
        Ok(0)
    }

    fn branched(&self) -> Option<&DynBranched<'_, Self>> {
        Some(self)
    }

    fn selective(&self) -> Option<&DynSelective<'_, Self>> {
        Some(self)
    }

    fn sliced(&self) -> Option<&DynSliced<'_, Self>> {
        Some(self)
    }

    fn splittable(&self) -> Option<&DynSplittable<'_, Self>> {
        Some(self)
    }
}

impl Branched for StandIn {
    fn forward_edges(
        &self,
        _: &[Tensor],
        micro: &Micro<'_>,
        _: Vec<Tensor>,
    ) -> Result<(Vec<Output<Tensor>>, u64)> {
        self.work(Kind::Forward, micro);
        let n_activations = self.n_outputs - usize::from(self.has_loss);
        let activations = (0..n_activations.min(1)).map(|_| Output::Activation(row(micro)));
        let loss = || Output::Loss { loss: Tensor::zeros(&[1]), grad: row(micro) };
        Ok((activations.chain(self.has_loss.then(loss)).collect(), 0))
    }

    fn backward_input_edges(
        &self,
        _: &[Tensor],
        micro: &Micro<'_>,
        slice: u64,
        _: Vec<Tensor>,
    ) -> Result<(Vec<Tensor>, u64)> {
        self.work_on(Kind::BackwardInput, micro, slice);
        Ok(((0..self.n_inputs).map(|_| row(micro)).collect(), slice))
    }

    fn recompute_edges(&self, _: &[Tensor], micro: &Micro<'_>, _: Vec<Tensor>) -> Result<u64> {
        self.work(Kind::Recompute, micro);
        Ok(0)
    }
}

impl Selective for StandIn {
    fn select(&self, slice: u64) -> u64 {
        slice
    }

    fn restore(&self, _: &[Tensor], micro: &Micro<'_>, slice: u64) -> Result<u64> {
        self.work_on(Kind::Recompute, micro, slice);
        Ok(slice)
    }
}

impl Sliced for StandIn {
    fn forward_slice(
        &self,
        _: &[Tensor],
        micro: &Micro<'_>,
        slice: Slice<'_, Tensor>,
        _: Option<Tensor>,
    ) -> Result<(Output<Tensor>, u64, Left<Tensor>)> {
        let index = slice.index() as u64;
        self.work_on(Kind::Forward, micro, index);
        Ok((self.output(micro), index, Left::new()))
    }

    fn recompute_slice(
        &self,
        _: &[Tensor],
        micro: &Micro<'_>,
        slice: Slice<'_, Tensor>,
        _: Option<Tensor>,
    ) -> Result<u64> {
        let index = slice.index() as u64;
        self.work_on(Kind::Recompute, micro, index);
        Ok(index)
    }

    fn backward_input_slice(
        &self,
        w: &[Tensor],
        micro: &Micro<'_>,
        slice: Slice<'_, Tensor>,
        saved: u64,
        gradients: SliceGradients<Tensor>,
    ) -> Result<(Option<Tensor>, u64, Vec<Left<Tensor>>)> {
        let (dx, deferred) = self.backward_input(w, micro, saved, gradients.output)?;
        Ok((dx, deferred, vec![Left::new(); slice.index()]))
    }
}

impl Splittable for StandIn {
    fn split_saved(&self, slice: u64, parts: usize) -> Result<Vec<u64>> {
        Ok(vec![slice; parts])
    }
}

/// Samples of one number, with values that are never read.
pub(super) struct Blank;

impl Data for Blank {
    fn sample(
        &self,
        _: u64,
        _: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        input.push(0);
        target.push(0);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        1
    }
}

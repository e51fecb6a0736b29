//! Running one op: from the values it eats to those it makes.

mod batch;
mod reads;

use std::collections::VecDeque;
use std::sync::Arc;

use chimera_schedule::ids::StageId;
use chimera_schedule::op::{Kind, Op};

use crate::comm::{Comm, Endpoint};
use crate::device::Device;
use crate::engine::row::value::Value;
use crate::engine::state::held_stage::{Held, Weights};
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::stages::{selective, sliced};
use crate::engine::state::work_piece::Shown;
use crate::fault::{Class, Fault};
use crate::stage::{ForwardResult, Output, Slice, StageEdges};

use self::batch::Batch;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Runs one op on the values it eats; returns the values it makes, in the order of its effects.
    pub(crate) fn run_op(
        &mut self,
        op: &Op,
        mut eaten: VecDeque<Value<S>>,
    ) -> Result<Vec<Value<S>>, Fault> {
        let is_sliced = self.job.program.rules().n_slices() > 1;
        match op.kind {
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return => self.run_move(op, eaten),
            Kind::Forward if is_sliced => self.forward_slice(op, eaten),
            Kind::Backward | Kind::BackwardInput if is_sliced => self.backward_slice(op, eaten),
            Kind::Forward => self.run_forward(op, eaten.into_iter().map(Value::tensor).collect()),
            Kind::Recompute => {
                let weights = self.versions(op, &mut eaten)?;
                let each = units(op).zip(eaten.into_iter().zip(&weights));
                let saved = each.map(|(unit, (kept, w))| self.recompute(&unit, w, kept));
                let mut made = saved.collect::<Result<Vec<_>, _>>()?;
                made.extend(self.kept_versions(weights));
                Ok(made)
            }
            Kind::Backward | Kind::BackwardInput => self.run_backward(op, eaten),
            Kind::BackwardWeight => {
                let mut shown = Vec::new();
                for (unit, deferred) in units(op).zip(eaten) {
                    shown.push(self.backward_weight(&unit, deferred.deferred())?);
                }
                Ok(self.made_shown(&shown).collect())
            }
            Kind::Work(work) => self.run_piece(op, work, eaten).map(|()| Vec::new()),
        }
    }

    fn run_forward(&mut self, op: &Op, x: Vec<S::Tensor>) -> Result<Vec<Value<S>>, Fault> {
        let rules = self.job.program.rules();
        let has_backward = rules.demand().has_backward(op.stage);
        let is_recomputed = rules.is_recomputed(op.pipe, op.stage);
        let is_selective = is_recomputed && rules.is_selective(op.pipe, op.stage);
        let keeps_input = is_recomputed && !is_selective;
        let weights = self.read(op)?;
        let stage = &self.stages.held(op.stage).stage;
        // A stage that cannot cut its saved activations saves them part by part.
        let parts: Vec<Op> = match stage.splittable() {
            Some(_) => vec![*op],
            None => units(op).collect(),
        };
        self.note_inputs(op, &x);
        let inputs = self.split_inputs(op, x, parts.len())?;
        let (mut outputs, mut grads, mut saved) = (Vec::new(), Vec::new(), Vec::new());
        for (part, x) in parts.iter().zip(inputs) {
            let kept = if keeps_input { x.clone() } else { Vec::new() };
            let batch = self.batch(part)?;
            let (of_edges, of_part) = self.forward(part, &weights, &batch, x)?;
            let mut activations = Vec::new();
            for output in of_edges {
                match output {
                    Output::Activation(y) => activations.push(y),
                    Output::Loss { loss, grad } => {
                        self.check_loss(part, &loss)?;
                        self.steps.losses.push((*part, loss));
                        if has_backward {
                            grads.extend(self.split(part, grad)?.into_iter().map(Value::Tensor));
                        }
                    }
                }
            }
            outputs.push(activations);
            if !has_backward {
                continue;
            }
            if keeps_input {
                let kept = self.split_inputs(part, kept, usize::from(part.span.len))?;
                saved.extend(kept.into_iter().map(|inputs| Value::Inputs(inputs, Vec::new())));
                continue;
            }
            let stage = &self.stages.held(op.stage).stage;
            let keep = |saved| if is_selective { selective(stage).select(saved) } else { saved };
            let of_units = self.split_saved(part, of_part)?.into_iter();
            saved.extend(of_units.map(|saved| Value::Saved(keep(saved), Vec::new())));
        }
        let mut made = self.joined(op, outputs)?;
        made.extend(grads);
        made.extend(saved);
        if has_backward {
            made.extend(self.kept_versions(units(op).map(|_| Arc::clone(&weights))));
        }
        Ok(made)
    }

    fn run_backward(
        &mut self,
        op: &Op,
        mut eaten: VecDeque<Value<S>>,
    ) -> Result<Vec<Value<S>>, Fault> {
        let weights = self.versions(op, &mut eaten)?;
        let n_units = usize::from(op.span.len);
        let grads = eaten.split_off(n_units).into_iter().map(Value::tensor).collect();
        let trains = self.job.program.rules().demand().trains(op.stage);
        let (mut given, mut deferred, mut shown) = (Vec::new(), Vec::new(), Vec::new());
        let values = eaten.into_iter().zip(by_turns(grads, n_units)).zip(weights);
        for (unit, ((saved, dy), w)) in units(op).zip(values) {
            let (dx, rest) = self.backward_input(&unit, &w, saved.saved(), dy)?;
            self.check_input_gradients(&unit, &dx)?;
            given.push(dx);
            match op.kind {
                Kind::Backward => shown.push(self.backward_weight(&unit, rest)?),
                _ if trains => deferred.push(Value::Deferred(rest)),
                _ => drop(rest),
            }
        }
        let n_inputs = self.edges(op.stage).n_inputs();
        let taken = given.into_iter().flat_map(|given| given.into_iter().take(n_inputs)).collect();
        let given = by_turns(taken, n_inputs);
        let wanted = given.into_iter().zip(self.takes_gradients(op.stage));
        let wanted = wanted.filter_map(|(given, is_wanted)| is_wanted.then_some(given));
        let mut made: Vec<_> = wanted.flatten().map(Value::Tensor).collect();
        made.extend(deferred);
        made.extend(self.made_shown(&shown));
        Ok(made)
    }

    /// By input edge of a stage: whether the stage at its start has a backward, which takes the
    /// gradient.
    pub(crate) fn takes_gradients(&self, stage: StageId) -> Vec<bool> {
        let rules = self.job.program.rules();
        let inputs = rules.graph().inputs(stage).iter();
        inputs.map(|from| rules.demand().has_backward(*from)).collect()
    }

    fn forward(
        &self,
        op: &Op,
        weights: &Weights<S>,
        batch: &Batch<S::Item>,
        x: Vec<S::Tensor>,
    ) -> Result<ForwardResult<S>, Fault> {
        let stage = &self.stages.held(op.stage).stage;
        let result = self.edges(op.stage).forward(stage, weights, &batch.micro(), x);
        self.on_device(op, result)
    }

    /// Recomputes the saved activations of one unit from what its forward kept.
    fn recompute(&self, op: &Op, weights: &Weights<S>, kept: Value<S>) -> Result<Value<S>, Fault> {
        let (batch, stage) = (self.batch(op)?, &self.stages.held(op.stage).stage);
        let (micro, n_slices) = (batch.micro(), self.job.program.rules().n_slices());
        let n_before = (op.span.start % n_slices) as usize;
        let (result, lefts) = match kept {
            Value::Saved(selected, lefts) if n_slices > 1 => {
                let slice = Slice { past: &lefts[..n_before], of: n_slices as usize };
                (selective(stage).restore_slice(weights, &micro, slice, selected), lefts)
            }
            Value::Saved(selected, lefts) => {
                (selective(stage).restore(weights, &micro, selected), lefts)
            }
            Value::Inputs(mut inputs, lefts) if n_slices > 1 => {
                let slice = Slice { past: &lefts[..n_before], of: n_slices as usize };
                (sliced(stage).recompute_slice(weights, &micro, slice, inputs.pop()), lefts)
            }
            Value::Inputs(inputs, lefts) => {
                (self.edges(op.stage).recompute(stage, weights, &micro, inputs), lefts)
            }
            other => panic!("the kept values of a forward were expected, not {}", other.name()),
        };
        Ok(Value::Saved(self.on_device(op, result)?, lefts))
    }

    fn backward_input(
        &self,
        op: &Op,
        weights: &Weights<S>,
        saved: S::Saved,
        dy: Vec<S::Tensor>,
    ) -> Result<(Vec<S::Tensor>, S::Deferred), Fault> {
        let batch = self.batch(op)?;
        let on = (&self.stages.held(op.stage).stage, &self.device);
        let result = self.edges(op.stage).backward_input(on, weights, &batch.micro(), saved, dy);
        self.on_device(op, result)
    }

    /// Adds the weight gradients of one unit; returns the operands that it shows.
    pub(crate) fn backward_weight(
        &mut self,
        op: &Op,
        deferred: S::Deferred,
    ) -> Result<Shown<S::Tensor>, Fault> {
        let batch = self.batch(op)?;
        let micro = batch.micro();
        let shown = self.show(op, &deferred)?;
        let Held { stage, grads, .. } = self.begun(op.stage)?;
        let result = stage.backward_weight(&micro, deferred, grads);
        self.on_device(op, result)?;
        self.check_gradients(op).map(|()| shown)
    }

    fn split_saved(&self, op: &Op, saved: S::Saved) -> Result<Vec<S::Saved>, Fault> {
        let parts = usize::from(op.span.len);
        let stage = &self.stages.held(op.stage).stage;
        let split = match stage.splittable() {
            Some(stage) if parts > 1 => stage.split_saved(saved, parts),
            _ => Ok(vec![saved]),
        };
        self.on_device(op, split)
    }

    /// Cuts a tensor into those of an op's units, along its first dimension.
    fn split(&self, op: &Op, tensor: S::Tensor) -> Result<Vec<S::Tensor>, Fault> {
        let parts = usize::from(op.span.len);
        if parts == 1 {
            return Ok(vec![tensor]);
        }
        let shape = self.device.shape(&tensor);
        let rows = shape.first().copied().unwrap_or(0);
        if !rows.is_multiple_of(parts) {
            let message = format!(
                "a tensor of shape {shape:?} cannot be cut into {parts} parts of equally many \
                 samples: the first extent of what a stage gives has to count samples"
            );
            return Err(self.at(Fault::new(Class::Usage, self.comm.rank(), message), op));
        }
        let len = rows / parts;
        let cut = (0..parts).map(|part| self.device.rows(&tensor, part * len, len));
        self.on_device(op, cut.collect())
    }

    /// Cuts the inputs of an op into `parts` equal parts; a source has none.
    fn split_inputs(
        &self,
        op: &Op,
        x: Vec<S::Tensor>,
        parts: usize,
    ) -> Result<Vec<Vec<S::Tensor>>, Fault> {
        if parts == 1 {
            return Ok(vec![x]);
        }
        let mut inputs: Vec<_> = (0..parts).map(|_| Vec::with_capacity(x.len())).collect();
        for x in x {
            let of_parts = self.split(op, x)?;
            inputs.iter_mut().zip(of_parts).for_each(|(inputs, x)| inputs.push(x));
        }
        Ok(inputs)
    }

    /// Joins the activations of an op's parts, and returns one per output edge to another stage.
    fn joined(&self, op: &Op, mut parts: Vec<Vec<S::Tensor>>) -> Result<Vec<Value<S>>, Fault> {
        let joined = match parts.len() {
            1 => parts.remove(0),
            n_parts => {
                let n_given = parts.first().map_or(0, Vec::len);
                let of_each = by_turns(parts.into_iter().flatten().collect(), n_given);
                debug_assert!(of_each.iter().all(|parts| parts.len() == n_parts));
                let join = |parts: &Vec<_>| self.device.join(&parts.iter().collect::<Vec<_>>());
                let joined = of_each.iter().map(join).collect::<Result<Vec<_>, _>>();
                self.on_device(op, joined)?
            }
        };
        Ok(self.edges(op.stage).along_edges(joined).into_iter().map(Value::Tensor).collect())
    }

    pub(crate) fn edges(&self, stage: StageId) -> StageEdges {
        StageEdges::of(self.job.program.rules().graph(), stage)
    }
}

/// Deals `values` out to `n` lists in turn: list `i` gets those at `i`, `i + n` and so on.
fn by_turns<T>(values: Vec<T>, n: usize) -> Vec<Vec<T>> {
    let mut dealt: Vec<Vec<T>> = (0..n).map(|_| Vec::new()).collect();
    for (at, value) in values.into_iter().enumerate() {
        dealt[at % n].push(value);
    }
    dealt
}

/// The op split into its single units.
fn units(op: &Op) -> impl Iterator<Item = Op> + use<> {
    let Op { kind, pipe, stage, span } = *op;
    span.units().map(move |u| Op::new(kind, pipe, stage, u))
}

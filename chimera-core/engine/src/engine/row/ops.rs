//! Running one op: from the values it eats to those it makes.

use std::collections::VecDeque;
use std::sync::Arc;

use chimera_schedule::effects::{Token, TokenKind};
use chimera_schedule::ids::StageId;
use chimera_schedule::op::{Kind, Op};

use crate::comm::{Comm, Endpoint};
use crate::device::{self, Device};
use crate::engine::Job;
use crate::engine::state::held_stage::{Held, Weights};
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::stages::{selective, sliced};
use crate::engine::state::work_piece::Shown;
use crate::fault::{Class, Fault};
use crate::stage::{ForwardResult, Left, Micro, Output, Slice, Stage, StageEdges};

/// The value of a live token.
pub(crate) enum Value<S: Stage> {
    /// An activation or a gradient.
    Tensor(S::Tensor),
    /// The checkpointed inputs, one per input edge. A source has none, since its samples come with
    /// the micro-batch. For a slice of a sequence, also what it and earlier slices left.
    Inputs(Vec<S::Tensor>, Vec<Left<S::Tensor>>),
    /// Saved activations, whole or selected; and what slices of a sequence left, up to this one.
    Saved(S::Saved, Vec<Left<S::Tensor>>),
    /// Deferred weight work.
    Deferred(S::Deferred),
    /// The tensors of saved activations that are being moved, or are at another worker.
    Tensors(Vec<S::Tensor>),
    /// Saved activations outside of the device's memory, as a function that reloads them.
    Offloaded(Box<dyn FnOnce() -> device::Result<Vec<S::Tensor>> + Send>),
    /// Memory for saved activations.
    Memory,
    /// A version of the stage's weights.
    Version(Weights<S>),
    /// The tensors that the slices of a sequence have left so far.
    Past(Vec<Left<S::Tensor>>),
    /// Gradients of what slices left.
    PastGradient(Vec<Left<S::Tensor>>),
    /// Operands of linear layers for work beside the training.
    Shown(Shown<S::Tensor>),
}

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
                let weights = self.versions(op, &mut eaten);
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
        let is_recomputed = rules.is_recomputed(op.pipe, op.stage);
        let is_selective = is_recomputed && rules.is_selective(op.pipe, op.stage);
        let keeps_input = is_recomputed && !is_selective;
        let weights = Arc::clone(self.version(op));
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
                        grads.extend(self.split(part, grad)?.into_iter().map(Value::Tensor));
                    }
                }
            }
            outputs.push(activations);
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
        made.extend(self.kept_versions(units(op).map(|_| Arc::clone(&weights))));
        Ok(made)
    }

    fn run_backward(
        &mut self,
        op: &Op,
        mut eaten: VecDeque<Value<S>>,
    ) -> Result<Vec<Value<S>>, Fault> {
        let weights = self.versions(op, &mut eaten);
        let n_units = usize::from(op.span.len);
        let grads = eaten.split_off(n_units).into_iter().map(Value::tensor).collect();
        let (mut given, mut deferred, mut shown) = (Vec::new(), Vec::new(), Vec::new());
        let values = eaten.into_iter().zip(by_turns(grads, n_units)).zip(weights);
        for (unit, ((saved, dy), w)) in units(op).zip(values) {
            let (dx, rest) = self.backward_input(&unit, &w, saved.saved(), dy)?;
            self.check_input_gradients(&unit, &dx)?;
            given.push(dx);
            match op.kind {
                Kind::Backward => shown.push(self.backward_weight(&unit, rest)?),
                _ => deferred.push(Value::Deferred(rest)),
            }
        }
        let n_inputs = self.edges(op.stage).n_inputs();
        let taken = given.into_iter().flat_map(|given| given.into_iter().take(n_inputs)).collect();
        let given = by_turns(taken, n_inputs);
        let mut made: Vec<_> = given.into_iter().flatten().map(Value::Tensor).collect();
        made.extend(deferred);
        made.extend(self.made_shown(&shown));
        Ok(made)
    }

    /// The weights for each unit: of the versions that the op eats last, or else the current.
    pub(crate) fn versions(&self, op: &Op, eaten: &mut VecDeque<Value<S>>) -> Vec<Weights<S>> {
        let n_versions = eaten.iter().filter(|v| matches!(v, Value::Version(_))).count();
        if n_versions == 0 {
            return units(op).map(|_| Arc::clone(&self.stages.held(op.stage).weights)).collect();
        }
        eaten.split_off(eaten.len() - n_versions).into_iter().map(Value::version).collect()
    }

    /// The versions that an op passes on, if weights may change before its backward.
    pub(crate) fn kept_versions<I: IntoIterator<Item = Weights<S>>>(
        &self,
        weights: I,
    ) -> impl Iterator<Item = Value<S>> + use<S, D, C, I> {
        let keeps = self.job.program.rules().keeps_versions();
        weights.into_iter().filter(move |_| keeps).map(Value::Version)
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
        let Held { stage, grads, .. } = self.stages.held_mut(op.stage);
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

    /// Bytes that `values` keep for later backwards.
    pub(crate) fn kept_bytes<'v>(
        &self,
        tokens: &[Token],
        values: impl Iterator<Item = &'v Value<S>>,
    ) -> u64
    where
        S: 'v,
    {
        let bytes = |(token, value): (&Token, &Value<S>)| {
            let sizes = || self.stages.held(token.stage).stage.sizes();
            match value {
                Value::Saved(saved, _) => sizes().map_or(0, |sizes| sizes.saved_bytes(saved)),
                Value::Deferred(deferred) => {
                    sizes().map_or(0, |sizes| sizes.deferred_bytes(deferred))
                }
                Value::Inputs(inputs, lefts) => {
                    let n_before = token.span.start % self.job.program.rules().n_slices();
                    let own = lefts.iter().skip(n_before as usize).flatten();
                    inputs.iter().chain(own).map(|input| self.device.bytes(input)).sum()
                }
                Value::Tensors(kept) if token.kind == TokenKind::Guest => {
                    kept.iter().map(|tensor| self.device.bytes(tensor)).sum()
                }
                Value::Tensor(_)
                | Value::Version(_)
                | Value::Past(_)
                | Value::PastGradient(_)
                | Value::Tensors(_)
                | Value::Offloaded(_)
                | Value::Memory
                | Value::Shown(_) => 0,
            }
        };
        tokens.iter().zip(values).map(bytes).sum()
    }

    /// The samples of an op. Sample `i` of the step's micro-batch `m` has number
    /// `(group*N + m)*B + i` in the step's global batch. An op on a slice of sequences has the whole
    /// samples of its micro-batch.
    pub(crate) fn batch(&self, op: &Op) -> Result<Batch<S::Item>, Fault> {
        let program = self.job.program;
        let n_slices = program.rules().n_slices();
        let unit_samples = self.job.micro_batch_size as u64 / u64::from(program.sample_shares());
        let n_units = program.window().units_per_step() / n_slices;
        let unit = u64::from(op.span.start / n_slices % n_units);
        let first = (self.group as u64 * u64::from(n_units) + unit) * unit_samples;
        let step = self.steps.first + u64::from(program.window().step_of(op.span));
        let (mut input, mut target) = (Vec::new(), Vec::new());
        if self.stages.held(op.stage).stage.needs_inputs() {
            for sample in first..first + unit_samples * u64::from(op.span.len) {
                let before = target.len();
                let read = self.job.data.sample(step, sample, &mut input, &mut target);
                read.map_err(|e| self.at(self.unreadable(step, &e), op))?;
                self.check_targets(op, (step, sample), target.len() - before)?;
            }
        }
        let has_loss = program.rules().graph().has_loss(op.stage);
        if !has_loss {
            target.clear();
        }
        let loss_scale = if has_loss { self.loss_scale(step, op)? } else { 0.0 };
        Ok(Batch { step, sample: first, input, target, loss_scale })
    }

    /// Number of targets that count in a step's global batch.
    pub(crate) fn n_counted(&self, step: u64) -> Result<u64, Fault> {
        let Job { program, data, width, micro_batch_size, .. } = &self.job;
        let n_micros = program.window().units_per_step() / program.units_per_micro();
        let n_samples = *width as u64 * u64::from(n_micros) * *micro_batch_size as u64;
        data.n_counted(step, n_samples).map_err(|e| self.unreadable(step, &e))
    }

    /// One over the targets that count in an update, or in the mean of a step's updates.
    fn loss_scale(&self, step: u64, op: &Op) -> Result<f64, Fault> {
        let window = self.job.program.window();
        let counted = self.n_counted(step).map_err(|fault| self.at(fault, op))?;
        let n_updates = f64::from(window.units_per_step()) / f64::from(window.units_per_update());
        Ok(n_updates / counted.max(1) as f64)
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

pub(crate) struct Batch<I> {
    step: u64,
    sample: u64,
    input: Vec<I>,
    target: Vec<I>,
    loss_scale: f64,
}

impl<I> Batch<I> {
    pub(crate) fn micro(&self) -> Micro<'_, I> {
        let Batch { step, sample, input, target, loss_scale } = self;
        Micro {
            step: *step,
            sample: *sample,
            input,
            target,
            loss_scale: *loss_scale,
            training: true,
        }
    }
}

/// Tokens of a kind always carry the same kind of value, so a different one is a bug.
impl<S: Stage> Value<S> {
    pub(crate) fn tensor(self) -> S::Tensor {
        match self {
            Value::Tensor(tensor) => tensor,
            other => panic!("a tensor was expected, not {}", other.name()),
        }
    }

    fn saved(self) -> S::Saved {
        match self {
            Value::Saved(saved, _) => saved,
            other => panic!("saved activations were expected, not {}", other.name()),
        }
    }

    fn deferred(self) -> S::Deferred {
        match self {
            Value::Deferred(deferred) => deferred,
            other => panic!("deferred weight work was expected, not {}", other.name()),
        }
    }

    fn version(self) -> Weights<S> {
        match self {
            Value::Version(weights) => weights,
            other => panic!("a version of the weights was expected, not {}", other.name()),
        }
    }

    pub(crate) fn shown(self) -> Shown<S::Tensor> {
        match self {
            Value::Shown(shown) => shown,
            other => panic!("shown operands were expected, not {}", other.name()),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Value::Tensor(_) => "a tensor",
            Value::Inputs(..) => "checkpointed inputs",
            Value::Saved(..) => "saved activations",
            Value::Deferred(_) => "deferred weight work",
            Value::Version(_) => "a version of the weights",
            Value::Past(_) => "what slices left",
            Value::Shown(_) => "operands that are shown",
            Value::PastGradient(_) => "gradients of what slices left",
            Value::Tensors(_) => "moved activations",
            Value::Offloaded(_) => "offloaded activations",
            Value::Memory => "memory for activations",
        }
    }
}

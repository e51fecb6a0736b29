//! Running an op on a slice of a sequence. In addition to the values of other ops, it passes on
//! what slices leave for later ones, and its gradient on the way back.

use std::collections::VecDeque;

use chimera_schedule::op::{Kind, Op};

use crate::comm::Comm;
use crate::device::Device;
use crate::engine::row::value::Value;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::stages::{selective, sliced};
use crate::fault::Fault;
use crate::stage::{Output, Slice, SliceGradients};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    pub(crate) fn forward_slice(
        &mut self,
        op: &Op,
        mut eaten: VecDeque<Value<S>>,
    ) -> Result<Vec<Value<S>>, Fault> {
        let (mut lefts, x) = match eaten.pop_back() {
            Some(Value::Past(past)) => (past, eaten.pop_back()),
            x => (Vec::new(), x),
        };
        let x = x.map(Value::tensor);
        self.note_inputs(op, x.as_slice());
        let rules = self.job.program.rules();
        let has_backward = rules.demand().has_backward(op.stage);
        let is_recomputed = rules.is_recomputed(op.pipe, op.stage);
        let is_selective = is_recomputed && rules.is_selective(op.pipe, op.stage);
        let of = rules.n_slices() as usize;
        let input = (is_recomputed && !is_selective).then(|| Vec::from_iter(x.clone()));
        let (weights, batch) = (self.read(op)?, self.batch(op)?);

        let stage = &self.stages.held(op.stage).stage;
        let slice = Slice { past: &lefts, of };
        let ran = sliced(stage).forward_slice(&weights, &batch.micro(), slice, x);
        let (output, saved, left) = self.on_device(op, ran)?;
        let output = match output {
            Output::Activation(y) => Some(y),
            Output::Loss { loss, grad } => {
                self.check_loss(op, &loss)?;
                self.steps.losses.push((*op, loss));
                has_backward.then_some(grad)
            }
        };
        let is_last = lefts.len() + 1 == of;
        if !is_last {
            lefts.push(left);
        }
        let stage = &self.stages.held(op.stage).stage;
        let kept = match input {
            Some(input) => Value::Inputs(input, lefts.clone()),
            None if is_selective => Value::Saved(selective(stage).select(saved), lefts.clone()),
            None => Value::Saved(saved, lefts.clone()),
        };
        let mut made: Vec<_> = output.map(Value::Tensor).into_iter().collect();
        if has_backward {
            made.push(kept);
        }
        if !is_last {
            made.push(Value::Past(lefts));
        }
        if has_backward {
            made.extend(self.kept_versions([weights]));
        }
        Ok(made)
    }

    pub(crate) fn backward_slice(
        &mut self,
        op: &Op,
        mut eaten: VecDeque<Value<S>>,
    ) -> Result<Vec<Value<S>>, Fault> {
        let weights = self.versions(op, &mut eaten)?;
        let later = match eaten.pop_back() {
            Some(Value::PastGradient(later)) => Some(later),
            other => {
                eaten.extend(other);
                None
            }
        };
        let (mut sums, left) = match later {
            Some(mut sums) => {
                let left = sums.pop();
                (sums, left)
            }
            None => (Vec::new(), None),
        };
        let mut next = || eaten.pop_front();
        let (Some(Value::Saved(saved, lefts)), Some(Value::Tensor(output))) = (next(), next())
        else {
            panic!("{op} was given other values than its effects name")
        };
        let n_slices = self.job.program.rules().n_slices();
        let (index, of) = ((op.span.start % n_slices) as usize, n_slices as usize);
        let batch = self.batch(op)?;
        let stage = &self.stages.held(op.stage).stage;
        let slice = Slice { past: &lefts[..index], of };
        let gradients = SliceGradients { output, left };
        let micro = batch.micro();
        let ran = sliced(stage).backward_input_slice(&weights[0], &micro, slice, saved, gradients);
        let (dx, deferred, d_past) = self.on_device(op, ran)?;
        self.check_input_gradients(op, dx.as_slice())?;
        if sums.is_empty() {
            sums = d_past;
        } else {
            let each = sums.iter_mut().flatten().zip(d_past.into_iter().flatten());
            let added = each.map(|(sum, part)| self.device.accumulate(sum, &part));
            self.on_device(op, added.collect::<Result<(), _>>())?;
        }
        let is_taken = self.takes_gradients(op.stage) == [true];
        let mut made: Vec<_> = dx.filter(|_| is_taken).map(Value::Tensor).into_iter().collect();
        let mut shown = Vec::new();
        match op.kind {
            Kind::Backward => shown.push(self.backward_weight(op, deferred)?),
            _ if self.job.program.rules().demand().trains(op.stage) => {
                made.push(Value::Deferred(deferred));
            }
            _ => drop(deferred),
        }
        if index > 0 {
            made.push(Value::PastGradient(sums));
        }
        made.extend(self.made_shown(&shown));
        Ok(made)
    }
}

//! One run of a part of a model through all the work of a stage with a micro-batch, call by call.
//!
//! It runs on any device. One that computes gives the times of the calls. One that only counts
//! gives the calls of a model's stages, with their extents, before anything is trained.

use std::time::Instant;

use chimera_core::device::{AdamW, Counted, Device, DeviceError, Sgd, Updated, WithMomentum};
use chimera_core::layers::{Activation, Call, Layers, Pointwise, Recorded};
use chimera_core::model::{Cut, DropoutRate, ModelConfig, ModelError, stage};
use chimera_core::stage::{AnyStage, Left, Micro, Output, Param, Slice, SliceGradients, Stage};
use serde::{Deserialize, Serialize};

/// A part of a model: stages are made of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModelPart {
    Embedding,
    Block,
    /// The head, including the loss.
    Head,
}

/// A pass of a stage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Half {
    Forward,
    /// The input half of a backward.
    Input,
    /// The weight half of a backward.
    Weight,
    /// Full recomputation.
    Recompute,
    /// Selective recomputation.
    Restore,
}

/// The calls of one pass.
#[derive(Clone, Debug)]
pub(crate) struct HalfCalls {
    pub(crate) half: Half,
    /// Number of the slice that the calls belong to; 0 for whole sequences.
    pub(crate) slice: usize,
    pub(crate) calls: Vec<Call>,
    /// Seconds of the whole pass, including the time between calls.
    pub(crate) seconds: f64,
}

/// A part of a model, with the size of its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizedPart<'m> {
    pub(crate) model: &'m ModelConfig,
    pub(crate) part: ModelPart,
    /// Number of blocks one after the other, if the part is a block.
    pub(crate) n_blocks: usize,
    /// Tokens of a sample.
    pub(crate) sequence: usize,
    /// Samples of a micro-batch.
    pub(crate) samples: usize,
    /// Slices that sequences are cut into.
    pub(crate) slices: usize,
    pub(crate) dropout: f64,
}

/// The reason why there was no pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl ModelPart {
    pub(crate) const ALL: [ModelPart; 3] =
        [ModelPart::Embedding, ModelPart::Block, ModelPart::Head];

    fn cut(self, n_blocks: usize) -> Cut {
        let n_blocks = if self == ModelPart::Block { n_blocks } else { 0 };
        Cut {
            blocks: 0..n_blocks,
            first: self == ModelPart::Embedding,
            last: self == ModelPart::Head,
            ..Cut::default()
        }
    }
}

/// A part of a model on a device, with weights.
pub(crate) struct ReadyStage<D: Layers> {
    device: Recorded<D>,
    stage: AnyStage<D::Tensor>,
    weights: Vec<D::Tensor>,
    input: Vec<u32>,
    target: Vec<u32>,
    /// The input, except for the first part, and the gradient of the output, except for the last part.
    x: Option<D::Tensor>,
    dy: Option<D::Tensor>,
    n_tokens: usize,
    /// Whether the host's clock times it.
    is_on_host: bool,
}

/// The state that a backward takes from its forward.
pub(super) struct Passed<D: Layers> {
    saved: <AnyStage<D::Tensor> as Stage>::Saved,
    /// The gradient of the output.
    dy: D::Tensor,
}

/// Two tensors of an optimizer's state for each parameter of a part.
pub(super) struct Moments<D: Layers>([Vec<D::Tensor>; 2]);

impl<D: Layers> Moments<D> {
    pub(super) fn new(device: &D, work: &SizedPart<'_>) -> Result<Moments<D>, DeviceError> {
        let params = work.model.params(&work.part.cut(work.n_blocks));
        // Zeros are written, because the first access to memory has to wait for it.
        let zeros =
            |param: &Param| device.upload_vec(&param.shape, numbers(param.n_elements(), 0.0));
        let moment = || params.iter().map(zeros).collect::<Result<Vec<_>, _>>();
        Ok(Moments([moment()?, moment()?]))
    }
}

impl<D: Layers> ReadyStage<D> {
    /// Prepares the part. Tensors have values only if it `computes`.
    pub(crate) fn new(
        device: &D,
        work: &SizedPart<'_>,
        computes: bool,
    ) -> Result<ReadyStage<D>, PassError> {
        let device = Recorded::new(device.clone())?;
        let SizedPart { model, part, n_blocks, sequence, samples, dropout: rate, .. } = *work;
        let (cut, dropout) = (part.cut(n_blocks), DropoutRate { rate, seed: 1 });
        let stage = stage(device.clone(), model, sequence, dropout, cut.clone())?;
        let n_tokens = sequence * samples;
        let (mut input, mut target) = (Vec::new(), Vec::new());
        for sample in 0..samples {
            let token = |t: usize| ((sample * sequence + t) * 7919 % model.vocab) as u32;
            let (ids, targets) = model.sample(&(0..sequence).map(token).collect::<Vec<_>>(), 0);
            input.extend(ids);
            target.extend(targets);
        }
        let activation = |scale: f32| -> Result<D::Tensor, DeviceError> {
            let (shape, n) = ([n_tokens, model.hidden], n_tokens * model.hidden);
            let values = if computes {
                device.upload_vec(&shape, numbers(n, scale))?
            } else {
                device.zeros(&shape)?
            };
            device.activation(&values, Activation::Tanh) // in the device's activation type
        };
        let x = (!cut.first).then(|| activation(1.0)).transpose()?;
        let dy = (!cut.last).then(|| activation(1e-4)).transpose()?;
        let weight = |param: &Param| {
            if computes {
                // Numbers that look random, and are quick to make.
                device.upload_vec(&param.shape, numbers(param.n_elements(), 0.05))
            } else {
                device.zeros(&param.shape)
            }
        };
        let weights = stage.params().iter().map(weight).collect::<Result<_, _>>()?;
        if !cut.last {
            target.clear();
        }
        let is_on_host = device.clock()?.is_none();
        Ok(ReadyStage { device, stage, weights, input, target, x, dy, n_tokens, is_on_host })
    }

    /// Runs a forward.
    pub(super) fn forward(&self) -> Result<(HalfCalls, Passed<D>), PassError> {
        let micro = self.micro();
        self.device.take()?;
        let (x, dy) = (self.x.clone(), self.dy.clone());
        let (calls, (output, saved)) =
            self.timed(Half::Forward, || self.stage.forward(&self.weights, &micro, x))?;
        let dy = match output {
            Output::Loss { grad, .. } => grad,
            Output::Activation(y) => dy.unwrap_or(y),
        };
        Ok((calls, Passed { saved, dy }))
    }

    /// Runs both halves of the backward after a forward, adding to the gradients.
    pub(super) fn backward(
        &self,
        Passed { saved, dy }: Passed<D>,
        grads: &mut [D::Tensor],
    ) -> Result<[HalfCalls; 2], PassError> {
        let micro = self.micro();
        let (input, (_dx, deferred)) = self
            .timed(Half::Input, || self.stage.backward_input(&self.weights, &micro, saved, dy))?;
        let (weight, ()) =
            self.timed(Half::Weight, || self.stage.backward_weight(&micro, deferred, grads))?;
        Ok([input, weight])
    }

    /// Runs both kinds of recomputation.
    pub(crate) fn recomputations(&self) -> Result<Vec<HalfCalls>, PassError> {
        let micro = self.micro();
        let (recompute, saved) = self.timed(Half::Recompute, || {
            self.stage.recompute(&self.weights, &micro, self.x.clone())
        })?;
        let selective = self.stage.selective().ok_or_else(|| lacks("selective recomputation"))?;
        let selected = selective.select(saved);
        let (restore, _) =
            self.timed(Half::Restore, || selective.restore(&self.weights, &micro, selected))?;
        Ok(vec![recompute, restore])
    }

    /// Runs forward, both kinds of recomputation and both halves of the backward, slice by slice.
    fn sliced(&self, work: &SizedPart<'_>) -> Result<Vec<HalfCalls>, PassError> {
        let (device, stage, w, micro) = (&self.device, &self.stage, &self.weights, self.micro());
        let selective = stage.selective().ok_or_else(|| lacks("selective recomputation"))?;
        let sliced = stage.sliced().ok_or_else(|| lacks("slices of sequences"))?;
        let of = work.slices;
        let mut did = Vec::new();
        let mut add = |slice, calls| did.push(HalfCalls { slice, ..calls });
        let mut grads = self.zeros()?;
        let mut lefts: Vec<Left<D::Tensor>> = Vec::new();
        let mut passed = Vec::new();
        for index in 0..of {
            let slice = Slice { past: &lefts, of };
            let rows = slice.range(work.sequence).len() * work.samples;
            let zeros = device.zeros(&[rows, work.model.hidden])?;
            let activation = device.activation(&zeros, Activation::Tanh)?;
            let x = self.x.as_ref().map(|_| activation.clone());
            device.take()?;
            let (calls, saved) = self
                .timed(Half::Recompute, || sliced.recompute_slice(w, &micro, slice, x.clone()))?;
            add(index, calls);
            let selected = selective.select(saved);
            let restore = || selective.restore_slice(w, &micro, slice, selected);
            add(index, self.timed(Half::Restore, restore)?.0);
            let (calls, (output, saved, left)) =
                self.timed(Half::Forward, || sliced.forward_slice(w, &micro, slice, x))?;
            add(index, calls);
            let dy = match output {
                Output::Loss { grad, .. } => grad,
                Output::Activation(_) => activation,
            };
            passed.push((saved, dy));
            lefts.push(left);
        }
        let mut d_lefts: Vec<Left<D::Tensor>> = Vec::new();
        for (index, (saved, output)) in passed.into_iter().enumerate().rev() {
            let slice = Slice { past: &lefts[..index], of };
            let gradients = SliceGradients { output, left: d_lefts.pop() };
            let (calls, deferred) = self.timed(Half::Input, || {
                let (_dx, deferred, d_past) =
                    sliced.backward_input_slice(w, &micro, slice, saved, gradients)?;
                for (sum, part) in d_lefts.iter_mut().flatten().zip(d_past.iter().flatten()) {
                    device.accumulate(sum, part)?;
                }
                if d_lefts.is_empty() {
                    d_lefts = d_past;
                }
                Ok(deferred)
            })?;
            add(index, calls);
            let weight = || stage.backward_weight(&micro, deferred, &mut grads);
            add(index, self.timed(Half::Weight, weight)?.0);
        }
        Ok(did)
    }

    /// Computes norms of gradients, applies them with every optimizer, and reduces and clears them.
    pub(crate) fn update(
        &mut self,
        grads: &[D::Tensor],
        Moments([m, v]): &mut Moments<D>,
    ) -> Result<Vec<Call>, PassError> {
        let device = &self.device;
        let (rate, eps, decay) = (1e-9, 1e-8, 0.1);
        let adam = AdamW {
            lr: rate,
            beta1: 0.9,
            beta2: 0.95,
            eps,
            weight_decay: decay,
            update: 1,
            grad_scale: 1.0,
        };
        let sgd = Sgd { lr: rate, momentum: 0.9, weight_decay: decay, grad_scale: 1.0 };
        device.squared_norms(&grads.iter().collect::<Vec<_>>())?;
        let tensors = self.weights.iter_mut().zip(grads).zip(m.iter_mut().zip(&mut *v));
        let mut tensors: Vec<_> = tensors.map(|((w, g), (m, v))| Updated { w, g, m, v }).collect();
        device.adamw(&mut tensors, &adam)?;
        device.lamb(&mut tensors, &adam)?;
        let tensors = self.weights.iter_mut().zip(grads).zip(&mut *m);
        let mut tensors: Vec<_> = tensors.map(|((w, g), m)| WithMomentum { w, g, m }).collect();
        device.sgd(&mut tensors, &sgd)?;
        // Last, since it would leave the moments in the caches.
        for (m, grad) in m.iter_mut().zip(grads) {
            let joined = device.join(&[grad])?;
            device.accumulate(m, &joined)?;
        }
        self.zeros()?; // the zero gradients of the next step
        Ok(self.device.take()?)
    }

    /// Returns gradients of zero.
    pub(super) fn zeros(&self) -> Result<Vec<D::Tensor>, DeviceError> {
        self.stage.params().iter().map(|param| self.device.zeros(&param.shape)).collect()
    }

    fn micro(&self) -> Micro<'_> {
        let (input, target) = (&self.input[..], &self.target[..]);
        let loss_scale = 1.0 / self.n_tokens as f64;
        Micro { step: 0, sample: 0, input, target, loss_scale, training: true }
    }

    fn timed<R>(
        &self,
        half: Half,
        act: impl FnOnce() -> Result<R, DeviceError>,
    ) -> Result<(HalfCalls, R), DeviceError> {
        let start = Instant::now();
        let result = act()?;
        let took = start.elapsed().as_secs_f64();
        let calls = self.device.take()?;
        let seconds =
            if self.is_on_host { took } else { calls.iter().map(|call| call.seconds).sum() };
        Ok((HalfCalls { half, slice: 0, calls, seconds }, result))
    }
}

fn lacks(ability: &str) -> DeviceError {
    DeviceError::other(format!("the stage has no {ability}"))
}

/// Returns numbers between `-scale` and `scale`.
pub(super) fn numbers(n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % 1009) as f32 * 2e-3 - 1.0) * scale).collect()
}

/// Returns the calls of a part by pass, and by slice, on a device that computes nothing.
pub(crate) fn calls(
    work: &SizedPart<'_>,
    activation_bytes: u64,
) -> Result<Vec<HalfCalls>, PassError> {
    let prepared = ReadyStage::new(&Counted::new(activation_bytes), work, false)?;
    if work.slices > 1 {
        return prepared.sliced(work);
    }
    let (forward, passed) = prepared.forward()?;
    let mut did = vec![forward];
    did.extend(prepared.backward(passed, &mut prepared.zeros()?)?);
    did.extend(prepared.recomputations()?);
    Ok(did)
}

#[cfg(test)]
mod tests;

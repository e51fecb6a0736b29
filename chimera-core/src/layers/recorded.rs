//! A device that computes on another one and notes each call: what was called, on how much, and for how long.
//!
//! A stage runs on it as on any other, so which layers a stage calls, and with which extents, is known of any stage
//! without a formula that has to follow what the models do: on a device that computes nothing, [`Counted`], it is known
//! before anything runs.
//!
//! [`Counted`]: crate::device::Counted

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Activation, Attention, Dropout, Layers, Layout, Mask, Rotary};
use crate::device::{AdamW, Clock, Device, Dtype, Elements, Fetch, Result, Sgd, Updated};

/// A device whose calls are noted. Clones note together.
#[derive(Clone)]
pub struct Recorded<D> {
    device: D,
    notes: Arc<Mutex<Notes>>,
}

/// One call.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// What was called.
    pub layer: &'static str,
    /// How much it was called on: the work is proportional to the product of these, for large ones.
    pub extents: Vec<usize>,
    /// How long it took.
    pub seconds: f64,
}

#[derive(Default)]
struct Notes {
    calls: Vec<Call>,
    /// Of a device that works on its own: its marks, one before and one after each call.
    clock: Option<Box<dyn Clock>>,
}

impl<D: Device> Recorded<D> {
    /// A device that computes on `device`.
    ///
    /// # Errors
    /// If the device has a clock and it cannot be had.
    pub fn new(device: D) -> Result<Recorded<D>> {
        let notes = Notes { calls: Vec::new(), clock: device.clock()? };
        Ok(Recorded { device, notes: Arc::new(Mutex::new(notes)) })
    }

    /// The calls since they were last taken, once all of them are done.
    ///
    /// # Errors
    /// If the device fails.
    pub fn take(&self) -> Result<Vec<Call>> {
        let mut notes = self.notes();
        let mut calls = std::mem::take(&mut notes.calls);
        if let Some(clock) = &mut notes.clock {
            let ages = clock.ages()?;
            for (call, ages) in calls.iter_mut().zip(ages.chunks_exact(2)) {
                call.seconds = ages[0] - ages[1];
            }
        }
        Ok(calls)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self) {
        if let Some(clock) = &mut self.notes().clock {
            clock.mark();
        }
    }

    fn call<R>(
        &self,
        layer: &'static str,
        extents: &[usize],
        act: impl FnOnce(&D) -> Result<R>,
    ) -> Result<R> {
        self.mark();
        let start = Instant::now();
        let result = act(&self.device)?;
        let seconds = start.elapsed().as_secs_f64();
        self.mark();
        self.notes().calls.push(Call { layer, extents: extents.to_vec(), seconds });
        Ok(result)
    }

    /// Rows and features of a matrix.
    fn matrix(&self, x: &D::Tensor) -> [usize; 2] {
        let shape = self.device.shape(x);
        let rows = shape.first().copied().unwrap_or(1);
        [rows, shape.iter().skip(1).product()]
    }

    fn n_elements<'t>(&self, tensors: impl IntoIterator<Item = &'t D::Tensor>) -> usize {
        tensors.into_iter().map(|t| self.device.shape(t).iter().product::<usize>()).sum()
    }

    fn updates(&self, tensors: &[Updated<'_, D::Tensor>]) -> usize {
        self.n_elements(tensors.iter().map(|tensor| tensor.g))
    }

    /// Heads of all samples, rows of a sample, keys that each may see, and features of a head.
    fn attention_extents(&self, qkv: &D::Tensor, by: &Attention<'_>) -> [usize; 4] {
        let [rows, width] = self.matrix(qkv);
        let visible = match by.mask {
            Mask::Window(keys) => keys.min(by.context),
            Mask::Causal | Mask::Lengths(_) => by.context,
        };
        [rows / by.context.max(1) * by.heads, by.context, visible, by.head_dim(width)]
    }
}

impl<D: Device> Device for Recorded<D> {
    type Tensor = D::Tensor;

    fn name(&self) -> String {
        self.device.name()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<D::Tensor> {
        self.device.upload(shape, data)
    }

    fn download(&self, tensor: &D::Tensor) -> Result<Vec<f32>> {
        self.device.download(tensor)
    }

    fn zeros(&self, shape: &[usize]) -> Result<D::Tensor> {
        self.call("zeros", &[shape.iter().product()], |device| device.zeros(shape))
    }

    fn shape(&self, tensor: &D::Tensor) -> Vec<usize> {
        self.device.shape(tensor)
    }

    fn rows(&self, tensor: &D::Tensor, start: usize, len: usize) -> Result<D::Tensor> {
        self.device.rows(tensor, start, len)
    }

    fn reshape(&self, tensor: &D::Tensor, shape: &[usize]) -> Result<D::Tensor> {
        self.device.reshape(tensor, shape)
    }

    fn join(&self, tensors: &[&D::Tensor]) -> Result<D::Tensor> {
        let n = self.n_elements(tensors.iter().copied());
        self.call("join", &[n], |device| device.join(tensors))
    }

    fn accumulate(&self, into: &mut D::Tensor, x: &D::Tensor) -> Result<()> {
        let n = self.n_elements([x]);
        self.call("accumulate", &[n], |device| device.accumulate(into, x))
    }

    fn squared_norms(&self, tensors: &[&D::Tensor]) -> Result<D::Tensor> {
        let n = self.n_elements(tensors.iter().copied());
        self.call("squared_norms", &[n], |device| device.squared_norms(tensors))
    }

    fn adamw(&self, tensors: &mut [Updated<'_, D::Tensor>], by: &AdamW) -> Result<()> {
        let n = self.updates(tensors);
        self.call("adamw", &[n], |device| device.adamw(tensors, by))
    }

    fn lamb(&self, tensors: &mut [Updated<'_, D::Tensor>], by: &AdamW) -> Result<()> {
        let n = self.updates(tensors);
        self.call("lamb", &[n], |device| device.lamb(tensors, by))
    }

    fn sgd(&self, tensors: &mut [Updated<'_, D::Tensor>], by: &Sgd) -> Result<()> {
        let n = self.updates(tensors);
        self.call("sgd", &[n], |device| device.sgd(tensors, by))
    }

    fn bytes(&self, tensor: &D::Tensor) -> u64 {
        self.device.bytes(tensor)
    }

    fn dtype(&self, tensor: &D::Tensor) -> Dtype {
        self.device.dtype(tensor)
    }

    fn download_words(&self, tensor: &D::Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.device.download_words(tensor, into)
    }

    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<D::Tensor> {
        self.device.upload_words(shape, dtype, words)
    }

    fn upload_vec(&self, shape: &[usize], data: Vec<f32>) -> Result<D::Tensor> {
        self.device.upload_vec(shape, data)
    }

    fn download_into(&self, tensor: &D::Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.device.download_into(tensor, into)
    }

    fn download_all(&self, tensors: &[&D::Tensor]) -> Result<Vec<Elements>> {
        self.device.download_all(tensors)
    }

    fn fetch(&self, tensor: &D::Tensor) -> Result<Option<Box<dyn Fetch>>> {
        self.device.fetch(tensor)
    }

    fn record_ready(&self, tensor: &D::Tensor) -> Result<()> {
        self.device.record_ready(tensor)
    }

    fn import(&self, tensor: D::Tensor) -> Result<D::Tensor> {
        self.device.import(tensor)
    }

    fn wait_ready(&self, tensor: &D::Tensor) -> Result<()> {
        self.device.wait_ready(tensor)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        self.device.clock()
    }
}

impl<D: Layers> Layers for Recorded<D> {
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &D::Tensor,
        positions: &D::Tensor,
    ) -> Result<D::Tensor> {
        let extents = [ids.len(), self.matrix(tokens)[1]];
        self.call("embedding", &extents, |device| device.embedding(ids, context, tokens, positions))
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &D::Tensor,
        d_tokens: &mut D::Tensor,
        d_positions: &mut D::Tensor,
    ) -> Result<()> {
        self.call("embedding_dw", &self.matrix(dy), |device| {
            device.embedding_dw(ids, context, dy, d_tokens, d_positions)
        })
    }

    fn linear(
        &self,
        x: &D::Tensor,
        w: &D::Tensor,
        layout: Layout,
        bias: Option<&D::Tensor>,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        let layer = match (layout, residual.is_some()) {
            (Layout::InOut, false) => "linear",
            (Layout::InOut, true) => "linear with residual",
            (Layout::OutIn, false) => "linear out-in",
            (Layout::OutIn, true) => "linear out-in with residual",
        };
        let [rows, inputs] = self.matrix(x);
        let extents = [rows, inputs, self.n_elements([w]) / inputs.max(1)];
        self.call(layer, &extents, |device| device.linear(x, w, layout, bias, residual))
    }

    fn linear_dx(&self, dy: &D::Tensor, w: &D::Tensor, layout: Layout) -> Result<D::Tensor> {
        let layer = match layout {
            Layout::InOut => "linear_dx",
            Layout::OutIn => "linear_dx out-in",
        };
        let [rows, outputs] = self.matrix(dy);
        let extents = [rows, self.n_elements([w]) / outputs.max(1), outputs];
        self.call(layer, &extents, |device| device.linear_dx(dy, w, layout))
    }

    fn linear_dw(
        &self,
        x: &D::Tensor,
        dy: &D::Tensor,
        layout: Layout,
        dw: &mut D::Tensor,
        d_bias: Option<&mut D::Tensor>,
    ) -> Result<()> {
        let layer = match (layout, d_bias.is_some()) {
            (Layout::InOut, false) => "linear_dw",
            (Layout::InOut, true) => "linear_dw with bias",
            (Layout::OutIn, false) => "linear_dw out-in",
            (Layout::OutIn, true) => "linear_dw out-in with bias",
        };
        let [[rows, inputs], [_, outputs]] = [x, dy].map(|tensor| self.matrix(tensor));
        let extents = [rows, inputs, outputs];
        self.call(layer, &extents, |device| device.linear_dw(x, dy, layout, dw, d_bias))
    }

    fn layer_norm(
        &self,
        x: &D::Tensor,
        gain: &D::Tensor,
        bias: &D::Tensor,
        epsilon: f64,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.call("layer_norm", &self.matrix(x), |device| device.layer_norm(x, gain, bias, epsilon))
    }

    fn layer_norm_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        gain: &D::Tensor,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        self.call("layer_norm_dx", &self.matrix(x), |device| {
            device.layer_norm_dx(dy, x, stats, gain, residual)
        })
    }

    fn layer_norm_dw(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        d_gain: &mut D::Tensor,
        d_bias: &mut D::Tensor,
    ) -> Result<()> {
        self.call("layer_norm_dw", &self.matrix(x), |device| {
            device.layer_norm_dw(dy, x, stats, d_gain, d_bias)
        })
    }

    fn activation(&self, x: &D::Tensor, f: Activation) -> Result<D::Tensor> {
        let layer = match f {
            Activation::GeluTanh => "gelu-tanh",
            Activation::Gelu => "gelu",
            Activation::Tanh => "tanh",
            Activation::Silu => "silu",
        };
        self.call(layer, &self.matrix(x), |device| device.activation(x, f))
    }

    fn activation_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        f: Activation,
    ) -> Result<(D::Tensor, D::Tensor)> {
        let layer = match f {
            Activation::GeluTanh => "gelu-tanh_dx",
            Activation::Gelu => "gelu_dx",
            Activation::Tanh => "tanh_dx",
            Activation::Silu => "silu_dx",
        };
        self.call(layer, &self.matrix(x), |device| device.activation_dx(dy, x, f))
    }

    fn has_llama_layers(&self) -> bool {
        self.device.has_llama_layers()
    }

    fn rms_norm(
        &self,
        x: &D::Tensor,
        gain: &D::Tensor,
        epsilon: f64,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.call("rms_norm", &self.matrix(x), |device| device.rms_norm(x, gain, epsilon))
    }

    fn rms_norm_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        gain: &D::Tensor,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        self.call("rms_norm_dx", &self.matrix(x), |device| {
            device.rms_norm_dx(dy, x, stats, gain, residual)
        })
    }

    fn rms_norm_dw(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        d_gain: &mut D::Tensor,
    ) -> Result<()> {
        self.call("rms_norm_dw", &self.matrix(x), |device| device.rms_norm_dw(dy, x, stats, d_gain))
    }

    fn gated(&self, x: &D::Tensor, f: Activation) -> Result<D::Tensor> {
        self.call(gated(f)[0], &self.matrix(x), |device| device.gated(x, f))
    }

    fn gated_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        f: Activation,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.call(gated(f)[1], &self.matrix(x), |device| device.gated_dx(dy, x, f))
    }

    fn rotary_table(&self, frequencies: &[f64], factor: f64, context: usize) -> Result<D::Tensor> {
        self.device.rotary_table(frequencies, factor, context)
    }

    fn rotary(&self, x: &D::Tensor, table: &D::Tensor, by: Rotary) -> Result<D::Tensor> {
        self.call("rotary", &self.matrix(x), |device| device.rotary(x, table, by))
    }

    fn dropout(
        &self,
        x: &D::Tensor,
        by: &Dropout,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        self.call("dropout", &self.matrix(x), |device| device.dropout(x, by, residual))
    }

    fn attention(&self, qkv: &D::Tensor, by: &Attention<'_>) -> Result<(D::Tensor, D::Tensor)> {
        let layer = if by.dropout.is_some() { "attention with dropout" } else { "attention" };
        let extents = self.attention_extents(qkv, by);
        self.call(layer, &extents, |device| device.attention(qkv, by))
    }

    fn attention_dx(
        &self,
        dy: &D::Tensor,
        qkv: &D::Tensor,
        out: &D::Tensor,
        log_sum: &D::Tensor,
        by: &Attention<'_>,
    ) -> Result<D::Tensor> {
        let layer = if by.dropout.is_some() { "attention_dx with dropout" } else { "attention_dx" };
        let extents = self.attention_extents(qkv, by);
        self.call(layer, &extents, |device| device.attention_dx(dy, qkv, out, log_sum, by))
    }

    fn attention_after(
        &self,
        qkv: &D::Tensor,
        cache: &mut D::Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.device.attention_after(qkv, cache, past, by)
    }

    fn cross_entropy(
        &self,
        logits: D::Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(D::Tensor, D::Tensor)> {
        let extents = self.matrix(&logits);
        self.call("cross_entropy", &extents, |device| device.cross_entropy(logits, targets, scale))
    }
}

/// Names of a gated activation and its gradient.
fn gated(f: Activation) -> [&'static str; 2] {
    match f {
        Activation::GeluTanh => ["gated gelu-tanh", "gated gelu-tanh_dx"],
        Activation::Gelu => ["gated gelu", "gated gelu_dx"],
        Activation::Tanh => ["gated tanh", "gated tanh_dx"],
        Activation::Silu => ["gated silu", "gated silu_dx"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Counted;
    use crate::device::reference::Reference;

    #[test]
    fn calls_are_the_same_whether_anything_is_computed_or_not() {
        fn calls<D: Layers>(device: D) -> Vec<(&'static str, Vec<usize>)> {
            let device = Recorded::new(device).expect("a device");
            let x = device.zeros(&[4, 6]).expect("zeros");
            let w = device.zeros(&[6, 18]).expect("zeros");
            let qkv = device.linear(&x, &w, Layout::InOut, None, None).expect("a product");
            device.attention(&qkv, &Attention::causal(3, 2)).expect("attention");
            let calls = device.take().expect("calls");
            assert_eq!(device.take().expect("calls"), []);
            assert!(calls.iter().all(|call| call.seconds >= 0.0));
            calls.into_iter().map(|call| (call.layer, call.extents)).collect()
        }
        let counted = calls(Counted::new(4));
        assert_eq!(counted, calls(Reference));
        let [.., (product, of), (attention, heads)] = &counted[..] else { panic!("{counted:?}") };
        assert_eq!((*product, &of[..]), ("linear", &[4, 6, 18][..]));
        assert_eq!((*attention, &heads[..]), ("attention", &[6, 2, 2, 2][..]));
    }
}

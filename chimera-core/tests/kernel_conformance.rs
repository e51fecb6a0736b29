//! The conformance suite finds what it is meant to find: each fault below is one that a backend could
//! have, put into a device that is otherwise right.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use chimera_core::kernels::conformance::{Case, cases};
use chimera_core::kernels::reference::{Reference, Tensor};
use chimera_core::kernels::{
    Activation, AdamW, Dropout, Kernels, Layout, Mask, Result, Sgd, Updated,
};

#[test]
fn faults_are_caught() {
    use Fault::*;
    for (fault, cases) in [
        (Nothing, &[][..]),
        (ZerosShared, &["zeros", "cross_entropy"]),
        (JoinAliases, &["join"]),
        (NanLost, &["squared_norms"]),
        (Overwrites, &["embedding_dw", "linear_dw", "layer_norm_dw", "head"]),
        (BiasForgotten, &["linear"]),
        (LayoutIgnored, &["linear_dx"]),
        (WritesResidual, &["linear", "layer_norm_dx"]),
        (VarianceCancels, &["layer_norm"]),
        (SecondCallDiffers, &["activation"]),
        (WrongShape, &["activation_dx"]),
        (OneGelu, &["activation", "activation_dx"]),
        (CounterWraps, &["dropout"]),
        (SamplesMixed, &["attention"]),
        (PaddingSeen, &["attention", "attention_dx"]),
        (WeightsStay, &["attention", "attention_dx"]),
        (WeightsWrap, &["attention", "attention_dx"]),
        (ExponentialOverflows, &["cross_entropy"]),
        (TailForgotten, &["adamw", "lamb", "sgd"]),
        (OthersForgotten, &["adamw", "lamb", "sgd"]),
        (TrustIgnored, &["lamb"]),
        (ZeroNormStays, &["lamb"]),
        (MomentumLost, &["sgd"]),
    ] {
        assert_eq!(failing(fault), cases, "{fault:?}");
    }
}

#[test]
fn operands_that_are_rows_are_tried_everywhere() {
    let every = cases::<Faulty>().into_iter().map(|case| case.name);
    let expected: Vec<_> = every.filter(|name| *name != "upload").collect();
    assert_eq!(failing(Fault::RowsFromTheStart), expected);
}

/// The cases that find something.
fn failing(fault: Fault) -> Vec<&'static str> {
    let calls = Arc::default();
    let device = Faulty { fault, calls };
    let passes =
        |case: &Case<Faulty>| case.check(&device, |x| x).is_ok_and(|worst| worst.error <= 1e-5);
    let failing = cases().into_iter().filter(|case| !passes(case));
    failing.map(|case| case.name).collect()
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Nothing,
    ZerosShared,
    RowsFromTheStart,
    JoinAliases,
    NanLost,
    Overwrites,
    BiasForgotten,
    LayoutIgnored,
    WritesResidual,
    VarianceCancels,
    SecondCallDiffers,
    WrongShape,
    OneGelu,
    CounterWraps,
    SamplesMixed,
    PaddingSeen,
    WeightsStay,
    WeightsWrap,
    ExponentialOverflows,
    TailForgotten,
    OthersForgotten,
    TrustIgnored,
    ZeroNormStays,
    MomentumLost,
}

#[derive(Clone)]
struct Faulty {
    fault: Fault,
    calls: Arc<AtomicU32>,
}

/// Memory that clones share, as on a device.
type Shared = Arc<Mutex<Tensor>>;

fn share(tensor: Tensor) -> Shared {
    Arc::new(Mutex::new(tensor))
}

fn read(shared: &Shared) -> Tensor {
    shared.lock().unwrap().clone()
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Calls `add` on copies of the accumulators, then writes them back.
    fn add<const N: usize>(
        &self,
        into: [&Shared; N],
        add: impl FnOnce([&mut Tensor; N]) -> Result<()>,
    ) -> Result<()> {
        let mut sums = into.map(read);
        if self.has(Fault::Overwrites) {
            sums = sums.map(|sum| Tensor::zeros(&sum.shape));
        }
        add(sums.each_mut())?;
        for (into, sum) in into.iter().zip(sums) {
            *into.lock().unwrap() = sum;
        }
        Ok(())
    }
}

impl Faulty {
    /// One GELU for another: they differ by no more than 5e-4.
    fn function(&self, f: Activation) -> Activation {
        match f {
            Activation::Gelu if self.has(Fault::OneGelu) => Activation::GeluTanh,
            f => f,
        }
    }

    /// The mask, or one without padding: `all` rows.
    fn seen<'m>(&self, mask: Mask<'m>, all: &'m [u32]) -> Mask<'m> {
        match mask {
            Mask::Lengths(_) if self.has(Fault::PaddingSeen) => Mask::Lengths(all),
            mask => mask,
        }
    }

    /// Which weights of attention are dropped, if it does not forget that, or the numbers' upper words.
    fn choice(&self, drop: Option<&Dropout>) -> Option<Dropout> {
        drop.filter(|_| !self.has(Fault::WeightsStay)).map(|by| {
            match self.has(Fault::WeightsWrap) {
                true => self.wrapped(by),
                false => *by,
            }
        })
    }

    /// As if the counter's upper word stayed where it begins.
    fn wrapped(&self, by: &Dropout) -> Dropout {
        let wraps = by.first > 1 << 31;
        // The element in which the counter's lower word would be zero again.
        let first = if wraps { u64::from(by.first as u32).wrapping_sub(1 << 32) } else { by.first };
        Dropout { first, ..*by }
    }

    /// Calls `update` on each tensor, and whether its weights are zeros.
    fn update(
        &self,
        tensors: &mut [Updated<'_, Shared>],
        update: impl Fn(bool, &mut [Updated<'_, Tensor>]) -> Result<()>,
    ) -> Result<()> {
        let n = if self.has(Fault::OthersForgotten) { 1 } else { usize::MAX };
        for Updated { w, g, m, v } in tensors.iter_mut().take(n) {
            let mut after = read(w);
            let (mut m, mut v) = (m.lock().unwrap(), v.lock().unwrap());
            let is_zero = after.data.iter().all(|w| *w == 0.0);
            let one = Updated { w: &mut after, g: &read(g), m: &mut m, v: &mut v };
            update(is_zero, &mut [one])?;
            let mut w = w.lock().unwrap();
            if self.has(Fault::TailForgotten) {
                let whole_blocks = w.data.len() / 8 * 8;
                after.data[whole_blocks..].copy_from_slice(&w.data[whole_blocks..]);
            }
            *w = after;
        }
        Ok(())
    }
}

impl Kernels for Faulty {
    type Tensor = Shared;

    fn device(&self) -> String {
        format!("reference with {:?}", self.fault)
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Shared> {
        Reference.upload(shape, data).map(share)
    }

    fn download(&self, tensor: &Shared) -> Result<Vec<f32>> {
        Reference.download(&read(tensor))
    }

    fn zeros(&self, shape: &[usize]) -> Result<Shared> {
        static ZEROS: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
        let fresh = share(Tensor::zeros(shape));
        if !self.has(Fault::ZerosShared) {
            return Ok(fresh);
        }
        let mut cache = ZEROS.lock().unwrap();
        let found = cache.iter().find(|zeros| read(zeros).shape == shape).cloned();
        Ok(found.unwrap_or_else(|| {
            cache.push(fresh.clone());
            fresh
        }))
    }

    fn shape(&self, tensor: &Shared) -> Vec<usize> {
        read(tensor).shape
    }

    fn rows(&self, tensor: &Shared, start: usize, len: usize) -> Result<Shared> {
        let start = if self.has(Fault::RowsFromTheStart) { 0 } else { start };
        Reference.rows(&read(tensor), start, len).map(share)
    }

    fn reshape(&self, tensor: &Shared, shape: &[usize]) -> Result<Shared> {
        Reference.reshape(&read(tensor), shape).map(share)
    }

    fn join(&self, tensors: &[&Shared]) -> Result<Shared> {
        if let ([only], true) = (tensors, self.has(Fault::JoinAliases)) {
            return Ok(Arc::clone(only));
        }
        let tensors: Vec<_> = tensors.iter().map(|x| read(x)).collect();
        Reference.join(&tensors.iter().collect::<Vec<_>>()).map(share)
    }

    fn accumulate(&self, into: &mut Shared, x: &Shared) -> Result<()> {
        let x = read(x);
        Reference.accumulate(&mut into.lock().unwrap(), &x)
    }

    fn squared_norms(&self, tensors: &[&Shared]) -> Result<Shared> {
        let mut tensors: Vec<_> = tensors.iter().map(|x| read(x)).collect();
        for x in tensors.iter_mut().filter(|_| self.has(Fault::NanLost)) {
            x.data.retain(|x| !x.is_nan());
            x.shape = vec![x.data.len()];
        }
        Reference.squared_norms(&tensors.iter().collect::<Vec<_>>()).map(share)
    }

    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Shared,
        positions: &Shared,
    ) -> Result<Shared> {
        Reference.embedding(ids, context, &read(tokens), &read(positions)).map(share)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Shared,
        d_tokens: &mut Shared,
        d_positions: &mut Shared,
    ) -> Result<()> {
        self.add([d_tokens, d_positions], |[d_tokens, d_positions]| {
            Reference.embedding_dw(ids, context, &read(dy), d_tokens, d_positions)
        })
    }

    fn linear(
        &self,
        x: &Shared,
        w: &Shared,
        layout: Layout,
        bias: Option<&Shared>,
        residual: Option<&Shared>,
    ) -> Result<Shared> {
        // Wrong only where both are given.
        let forgotten = self.has(Fault::BiasForgotten) && residual.is_some();
        let bias = bias.filter(|_| !forgotten).map(read);
        let y = Reference.linear(
            &read(x),
            &read(w),
            layout,
            bias.as_ref(),
            residual.map(read).as_ref(),
        )?;
        Ok(match residual {
            Some(residual) if self.has(Fault::WritesResidual) => {
                *residual.lock().unwrap() = y;
                residual.clone()
            }
            _ => share(y),
        })
    }

    fn linear_dx(&self, dy: &Shared, w: &Shared, layout: Layout) -> Result<Shared> {
        let w = read(w);
        // Only square matrices let it pass unnoticed.
        let square = w.n_rows() == w.width();
        let layout = if self.has(Fault::LayoutIgnored) && square { Layout::InOut } else { layout };
        Reference.linear_dx(&read(dy), &w, layout).map(share)
    }

    fn linear_dw(
        &self,
        x: &Shared,
        dy: &Shared,
        layout: Layout,
        dw: &mut Shared,
        d_bias: Option<&mut Shared>,
    ) -> Result<()> {
        let (x, dy) = (read(x), read(dy));
        match d_bias {
            None => self.add([dw], |[dw]| Reference.linear_dw(&x, &dy, layout, dw, None)),
            Some(d_bias) => self.add([dw, d_bias], |[dw, d_bias]| {
                Reference.linear_dw(&x, &dy, layout, dw, Some(d_bias))
            }),
        }
    }

    fn layer_norm(
        &self,
        x: &Shared,
        gain: &Shared,
        bias: &Shared,
        epsilon: f64,
    ) -> Result<(Shared, Shared)> {
        let (x, gain, bias) = (read(x), read(gain), read(bias));
        let (mut y, mut stats) = Reference.layer_norm(&x, &gain, &bias, epsilon)?;
        if self.has(Fault::VarianceCancels) {
            for r in 0..x.n_rows() {
                let n = x.width() as f32;
                let sum: f32 = x.row(r).iter().map(|&x| x as f32).sum();
                let squares: f32 = x.row(r).iter().map(|&x| (x as f32).powi(2)).sum();
                let mean = sum / n;
                let variance = (squares / n - mean * mean).max(0.0);
                let scale = f64::from(1.0 / (variance + epsilon as f32).sqrt());
                let correction = scale / stats.row(r)[1];
                stats.row_mut(r)[1] = scale;
                for (y, bias) in y.row_mut(r).iter_mut().zip(&bias.data) {
                    *y = (*y - bias) * correction + bias;
                }
            }
        }
        Ok((share(y), share(stats)))
    }

    fn layer_norm_dx(
        &self,
        dy: &Shared,
        x: &Shared,
        stats: &Shared,
        gain: &Shared,
        residual: Option<&Shared>,
    ) -> Result<Shared> {
        let (dy, x, stats, gain) = (read(dy), read(x), read(stats), read(gain));
        let dx = Reference.layer_norm_dx(&dy, &x, &stats, &gain, residual.map(read).as_ref())?;
        Ok(match residual {
            Some(residual) if self.has(Fault::WritesResidual) => {
                *residual.lock().unwrap() = dx;
                residual.clone()
            }
            _ => share(dx),
        })
    }

    fn layer_norm_dw(
        &self,
        dy: &Shared,
        x: &Shared,
        stats: &Shared,
        d_gain: &mut Shared,
        d_bias: &mut Shared,
    ) -> Result<()> {
        self.add([d_gain, d_bias], |[d_gain, d_bias]| {
            Reference.layer_norm_dw(&read(dy), &read(x), &read(stats), d_gain, d_bias)
        })
    }

    fn activation(&self, x: &Shared, f: Activation) -> Result<Shared> {
        let mut y = Reference.activation(&read(x), self.function(f))?;
        if self.has(Fault::SecondCallDiffers) {
            // By the last bit of f32, as from a sum in another order.
            let calls = self.calls.fetch_add(1, Ordering::Relaxed);
            y.data.iter_mut().for_each(|y| *y *= 1.0 + 2e-7 * f64::from(calls % 2));
        }
        Ok(share(y))
    }

    fn activation_dx(&self, dy: &Shared, x: &Shared, f: Activation) -> Result<(Shared, Shared)> {
        let (mut dx, y) = Reference.activation_dx(&read(dy), &read(x), self.function(f))?;
        if self.has(Fault::WrongShape) {
            dx.shape = vec![dx.data.len()];
        }
        Ok((share(dx), share(y)))
    }

    fn dropout(&self, x: &Shared, by: &Dropout, residual: Option<&Shared>) -> Result<Shared> {
        let by = if self.has(Fault::CounterWraps) { self.wrapped(by) } else { *by };
        Reference.dropout(&read(x), &by, residual.map(read).as_ref()).map(share)
    }

    fn attention(
        &self,
        qkv: &Shared,
        heads: usize,
        context: usize,
        mask: Mask<'_>,
        drop: Option<&Dropout>,
    ) -> Result<(Shared, Shared)> {
        let qkv = read(qkv);
        // Causal rows as one sample: they see those of the samples before theirs.
        let mixed = self.has(Fault::SamplesMixed) && mask == Mask::Causal;
        let context = if mixed { qkv.n_rows() } else { context };
        let all = vec![context as u32; qkv.n_rows() / context];
        let mask = self.seen(mask, &all);
        let (out, log_sum) =
            Reference.attention(&qkv, heads, context, mask, self.choice(drop).as_ref())?;
        Ok((share(out), share(log_sum)))
    }

    fn attention_dx(
        &self,
        dy: &Shared,
        qkv: &Shared,
        out: &Shared,
        log_sum: &Shared,
        heads: usize,
        context: usize,
        mask: Mask<'_>,
        drop: Option<&Dropout>,
    ) -> Result<Shared> {
        let (dy, qkv, out, log_sum) = (read(dy), read(qkv), read(out), read(log_sum));
        let all = vec![context as u32; qkv.n_rows() / context];
        let (mask, drop) = (self.seen(mask, &all), self.choice(drop));
        Reference
            .attention_dx(&dy, &qkv, &out, &log_sum, heads, context, mask, drop.as_ref())
            .map(share)
    }

    fn cross_entropy(
        &self,
        logits: Shared,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Shared, Shared)> {
        let logits = read(&logits);
        let overflow = logits.data.iter().any(|x| (*x as f32).exp().is_infinite());
        let (loss, mut gradient) = Reference.cross_entropy(logits, targets, scale)?;
        if self.has(Fault::ExponentialOverflows) && overflow {
            gradient.data[0] = f64::NAN;
        }
        Ok((share(loss), share(gradient)))
    }

    fn adamw(&self, tensors: &mut [Updated<'_, Shared>], by: &AdamW) -> Result<()> {
        self.update(tensors, |_, tensors| Reference.adamw(tensors, by))
    }

    fn lamb(&self, tensors: &mut [Updated<'_, Shared>], by: &AdamW) -> Result<()> {
        self.update(tensors, |zero, tensors| match self.fault {
            Fault::TrustIgnored => Reference.adamw(tensors, by),
            Fault::ZeroNormStays if zero => Ok(()),
            _ => Reference.lamb(tensors, by),
        })
    }

    fn sgd(&self, tensors: &mut [Updated<'_, Shared>], by: &Sgd) -> Result<()> {
        let momentum = if self.has(Fault::MomentumLost) { 0.0 } else { by.momentum };
        self.update(tensors, |_, tensors| Reference.sgd(tensors, &Sgd { momentum, ..*by }))
    }
}

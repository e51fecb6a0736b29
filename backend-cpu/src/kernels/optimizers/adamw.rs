//! AdamW: one pass over weights, gradient and moments.

use candle_core::{Result, Tensor};
use chimera_core::device::{AdamW, Updated};

use crate::kernels::memory::{update as change, values};
use crate::kernels::{PIECE, Piece, run_all};

pub(crate) fn update(tensor: &mut Updated<'_, Tensor>, by: &AdamW) -> Result<()> {
    let Updated { w, g, m, v } = tensor;
    let step = Step::new(by);
    let g = values(g)?;
    change(w, |w| {
        change(m, |m| {
            change(v, |v| {
                assert!(w.len() == g.len() && m.len() == g.len() && v.len() == g.len());
                let moments = m.chunks_mut(PIECE).zip(v.chunks_mut(PIECE));
                let pieces = w.chunks_mut(PIECE).zip(g.chunks(PIECE)).zip(moments);
                run_all(pieces.map(|((w, g), (m, v))| Update { w, g, m, v, step: &step }));
                Ok(())
            })
        })
    })
}

/// The constants of one update, computed in f64 where possible.
struct Step {
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    keep: f32,
    rate: f32,
    root_correction: f32,
    eps: f32,
    grad_scale: f32,
}

impl Step {
    fn new(by: &AdamW) -> Self {
        let [correction1, correction2] = by.corrections();
        Self {
            beta1: by.beta1 as f32,
            beta2: by.beta2 as f32,
            one_minus_beta1: (1.0 - by.beta1) as f32,
            one_minus_beta2: (1.0 - by.beta2) as f32,
            keep: (1.0 - by.lr * by.weight_decay) as f32,
            rate: (by.lr / correction1) as f32,
            root_correction: correction2.sqrt().recip() as f32,
            eps: by.eps as f32,
            grad_scale: by.grad_scale as f32,
        }
    }
}

struct Update<'a> {
    w: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    step: &'a Step,
}

impl Piece for Update<'_> {
    #[inline(always)]
    fn run(self) {
        let step = self.step;
        let moments = self.m.iter_mut().zip(self.v);
        for ((w, g), (m, v)) in self.w.iter_mut().zip(self.g).zip(moments) {
            let g = g * step.grad_scale;
            *m = step.beta1.mul_add(*m, step.one_minus_beta1 * g);
            *v = step.beta2.mul_add(*v, step.one_minus_beta2 * g * g);
            let root = v.sqrt().mul_add(step.root_correction, step.eps);
            *w = step.keep.mul_add(*w, -step.rate * *m / root);
        }
    }
}

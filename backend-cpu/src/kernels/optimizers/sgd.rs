//! Gradient descent with momentum: one pass over weights, gradient and momentum.

use candle_core::{Result, Tensor};
use chimera_core::device::{Sgd, WithMomentum};

use crate::kernels::memory::{update as change, values};
use crate::kernels::{PIECE, Piece, run_all};

pub(crate) fn update(tensor: &mut WithMomentum<'_, Tensor>, by: &Sgd) -> Result<()> {
    let WithMomentum { w, g, m } = tensor;
    let step = Step {
        momentum: by.momentum as f32,
        keep: (1.0 - by.lr * by.weight_decay) as f32,
        lr: by.lr as f32,
        grad_scale: by.grad_scale as f32,
    };
    let g = values(g)?;
    change(w, |w| {
        change(m, |m| {
            assert!(w.len() == g.len() && m.len() == g.len());
            let pieces = w.chunks_mut(PIECE).zip(g.chunks(PIECE)).zip(m.chunks_mut(PIECE));
            run_all(pieces.map(|((w, g), m)| Update { w, g, m, step: &step }));
            Ok(())
        })
    })
}

/// The constants of one update, computed in f64 where possible.
struct Step {
    momentum: f32,
    keep: f32,
    lr: f32,
    grad_scale: f32,
}

struct Update<'a> {
    w: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    step: &'a Step,
}

impl Piece for Update<'_> {
    #[inline(always)]
    fn run(self) {
        let step = self.step;
        for ((w, g), m) in self.w.iter_mut().zip(self.g).zip(self.m) {
            *m = step.momentum.mul_add(*m, g * step.grad_scale);
            *w = step.keep.mul_add(*w, -step.lr * *m);
        }
    }
}

//! LAMB: one pass updates the moments and sums the norms, a second one updates the weights.

use candle_core::{Result, Tensor};
use chimera_core::device::{AdamW, Updated};

use crate::kernels::math::LANES;
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
                let mut sums = vec![[0.0; 2]; w.len().div_ceil(PIECE)];
                let moments = m.chunks_mut(PIECE).zip(v.chunks_mut(PIECE));
                let pieces = w.chunks(PIECE).zip(g.chunks(PIECE)).zip(moments).zip(&mut sums);
                run_all(pieces.map(|(((w, g), (m, v)), sums)| Moments {
                    w,
                    g,
                    m,
                    v,
                    sums,
                    step: &step,
                }));
                let [w_norm, d_norm] =
                    [0, 1].map(|i| sums.iter().map(|s| s[i]).sum::<f64>().sqrt());
                let ratio = if w_norm > 0.0 && d_norm > 0.0 { w_norm / d_norm } else { 1.0 };
                let rate = (by.lr * ratio) as f32;
                let moments = m.chunks(PIECE).zip(v.chunks(PIECE));
                let pieces = w.chunks_mut(PIECE).zip(moments);
                run_all(pieces.map(|(w, (m, v))| Move { w, m, v, rate, step: &step }));
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
    correction: f32,
    root_correction: f32,
    eps: f32,
    weight_decay: f32,
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
            correction: correction1.recip() as f32,
            root_correction: correction2.sqrt().recip() as f32,
            eps: by.eps as f32,
            weight_decay: by.weight_decay as f32,
            grad_scale: by.grad_scale as f32,
        }
    }

    #[inline(always)]
    fn direction(&self, w: f32, m: f32, v: f32) -> f32 {
        let root = v.sqrt().mul_add(self.root_correction, self.eps);
        self.weight_decay.mul_add(w, self.correction * m / root)
    }
}

struct Moments<'a> {
    w: &'a [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    /// Sums of squares: of the weights, and of the direction.
    sums: &'a mut [f64; 2],
    step: &'a Step,
}

impl Piece for Moments<'_> {
    #[inline(always)]
    fn run(self) {
        let step = self.step;
        let mut lanes = [[0.0; LANES]; 2];
        let each = self.w.chunks(LANES).zip(self.g.chunks(LANES));
        let moments = self.m.chunks_mut(LANES).zip(self.v.chunks_mut(LANES));
        for ((w, g), (m, v)) in each.zip(moments) {
            for lane in 0..w.len() {
                let g = g[lane] * step.grad_scale;
                m[lane] = step.beta1.mul_add(m[lane], step.one_minus_beta1 * g);
                v[lane] = step.beta2.mul_add(v[lane], step.one_minus_beta2 * g * g);
                let d = f64::from(step.direction(w[lane], m[lane], v[lane]));
                let w = f64::from(w[lane]);
                lanes[0][lane] += w * w;
                lanes[1][lane] += d * d;
            }
        }
        *self.sums = lanes.map(|lanes| lanes.iter().sum());
    }
}

struct Move<'a> {
    w: &'a mut [f32],
    m: &'a [f32],
    v: &'a [f32],
    rate: f32,
    step: &'a Step,
}

impl Piece for Move<'_> {
    #[inline(always)]
    fn run(self) {
        for (w, (m, v)) in self.w.iter_mut().zip(self.m.iter().zip(self.v)) {
            *w -= self.rate * self.step.direction(*w, *m, *v);
        }
    }
}

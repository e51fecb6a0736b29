//! Updates of weights. Constants are worked out in f64 on the host.

use chimera_core::kernels::{AdamW, Result, Sgd};

use super::{Arg, BLOCK, Driver, Element, Gpu, Tensor, float, long};

impl<D: Driver> Gpu<D> {
    pub(super) fn adamw_update(
        &self,
        w: &Tensor<D::Memory>,
        g: &Tensor<D::Memory>,
        m: &Tensor<D::Memory>,
        v: &Tensor<D::Memory>,
        by: &AdamW,
    ) -> Result<()> {
        let (g, n) = (self.wide(g)?, w.len());
        let own = [w.write(), g.read(), m.write(), v.write(), long(n)];
        let rates = [float(by.lr), float(1.0 - by.lr * by.weight_decay)];
        let args: Vec<_> = own.into_iter().chain(moments(by)).chain(rates).collect();
        self.run_each("adamw", n, &args)
    }

    pub(super) fn lamb_update(
        &self,
        w: &Tensor<D::Memory>,
        g: &Tensor<D::Memory>,
        m: &Tensor<D::Memory>,
        v: &Tensor<D::Memory>,
        by: &AdamW,
    ) -> Result<()> {
        let (g, n) = (self.wide(g)?, w.len());
        let d = self.empty(&w.shape, Element::F32)?;
        let [w_squares, d_squares] = [self.parts(n)?, self.parts(n)?];
        let own = [
            w.read(),
            g.read(),
            m.write(),
            v.write(),
            d.write(),
            Arg::Write(&w_squares.memory, 0),
            Arg::Write(&d_squares.memory, 0),
            long(n),
        ];
        let decay = [float(by.weight_decay)];
        let args: Vec<_> = own.into_iter().chain(moments(by)).chain(decay).collect();
        self.run("lamb_direction", [w_squares.n, 1], BLOCK, &args)?;
        let [w_square, d_square] = [self.sum(&w_squares, 1.0)?, self.sum(&d_squares, 1.0)?];
        let args = [w.write(), d.read(), w_square.read(), d_square.read(), long(n), float(by.lr)];
        self.run_each("lamb_step", n, &args)
    }

    pub(super) fn sgd_update(
        &self,
        w: &Tensor<D::Memory>,
        g: &Tensor<D::Memory>,
        m: &Tensor<D::Memory>,
        by: &Sgd,
    ) -> Result<()> {
        let (g, n) = (self.wide(g)?, w.len());
        let args = [
            w.write(),
            g.read(),
            m.write(),
            long(n),
            float(by.momentum),
            float(by.grad_scale),
            float(by.lr),
            float(1.0 - by.lr * by.weight_decay),
        ];
        self.run_each("sgd", n, &args)
    }
}

/// The constants of `struct Moments` in `kernels/optimizer.cu`.
fn moments<M>(by: &AdamW) -> [Arg<'static, M>; 8] {
    let [correction1, correction2] = by.corrections();
    [
        float(by.beta1),
        float(1.0 - by.beta1),
        float(by.beta2),
        float(1.0 - by.beta2),
        float(1.0 / correction1),
        float(1.0 / correction2.sqrt()),
        float(by.eps),
        float(by.grad_scale),
    ]
}

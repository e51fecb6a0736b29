//! Weight updates. Constants are computed in f64 on the host.

use chimera_core::device::{AdamW, Result, Sgd, Updated, WithMomentum};

use super::{Arg, BLOCK, CHUNK, Driver, Element, Gpu, Tensor, float, int, long};

/// The weights of a tensor, its gradient and its moments.
type WithMoments<'t, M, const N: usize> = (&'t Tensor<M>, &'t Tensor<M>, [&'t Tensor<M>; N]);

impl<D: Driver> Gpu<D> {
    pub(super) fn adamw_update(
        &self,
        tensors: &[Updated<'_, Tensor<D::Memory>>],
        by: &AdamW,
    ) -> Result<()> {
        let rates = [float(by.lr), float(1.0 - by.lr * by.weight_decay)];
        let tensors = tensors.iter().map(|Updated { w, g, m, v }| (&**w, *g, [&**m, &**v]));
        self.update_all("adamw", tensors, &[&moments(by)[..], &rates].concat())
    }

    pub(super) fn sgd_update(
        &self,
        tensors: &[WithMomentum<'_, Tensor<D::Memory>>],
        by: &Sgd,
    ) -> Result<()> {
        let keep = 1.0 - by.lr * by.weight_decay;
        let tensors = tensors.iter().map(|WithMomentum { w, g, m }| (&**w, *g, [&**m]));
        self.update_all("sgd", tensors, &[by.momentum, by.grad_scale, by.lr, keep].map(float))
    }

    /// Starts a kernel once for all tensors, each with its weights, its gradient and its moments.
    /// With hundreds of tensors, starting it for each would take longer than running it.
    fn update_all<'t, const N: usize>(
        &self,
        kernel: &'static str,
        tensors: impl Iterator<Item = WithMoments<'t, D::Memory, N>> + Clone,
        constants: &[Arg<'_, D::Memory>],
    ) -> Result<()>
    where
        D::Memory: 't,
    {
        let gradients = tensors.clone().map(|(_, g, _)| self.wide(g));
        let gradients: Vec<_> = gradients.collect::<Result<_>>()?;
        let (mut rows, mut n_blocks) = (Vec::new(), 0);
        for ((w, _, moments), g) in tensors.zip(&gradients) {
            let n = w.len();
            rows.extend([w.write(), g.read()]);
            rows.extend(moments.map(Tensor::write));
            rows.extend([long(n), long(n_blocks)]);
            n_blocks += n.div_ceil(CHUNK * BLOCK);
        }
        let args = [&[Arg::Table(&rows), int(gradients.len())], constants].concat();
        self.run(kernel, [n_blocks, 1], BLOCK, &args)
    }

    pub(super) fn lamb_update(
        &self,
        Updated { w, g, m, v }: &Updated<'_, Tensor<D::Memory>>,
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
}

/// Returns the constants of `struct Moments` in `kernels/optimizer.cu`.
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

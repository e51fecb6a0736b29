//! Elementwise operations.

use chimera_core::device::Result;
use chimera_core::layers::{Activation, Dropout, Pointwise, Rotary};

use super::{Arg, BLOCK, CHUNK, Driver, Element, Gpu, Tensor, float, int, long};

impl<D: Driver> Pointwise for Gpu<D> {
    fn activation(&self, x: &Tensor<D::Memory>, f: Activation) -> Result<Tensor<D::Memory>> {
        let (x, n) = (self.cast(x)?, x.len());
        let y = self.activation_of(&x.shape)?;
        self.run_each("activation", n, &[x.read(), y.write(), long(n), number(f)])?;
        Ok(y)
    }

    fn activation_dx(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
        f: Activation,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let (dy, x, n) = (self.cast(dy)?, self.cast(x)?, x.len());
        assert_eq!(dy.len(), n, "activation_dx");
        let [dx, y] = [self.activation_of(&x.shape)?, self.activation_of(&x.shape)?];
        let args = [dy.read(), x.read(), dx.write(), y.write(), long(n), number(f)];
        self.run_each("activation_dx", n, &args)?;
        Ok((dx, y))
    }

    fn dropout(
        &self,
        x: &Tensor<D::Memory>,
        by: &Dropout,
        residual: Option<&Tensor<D::Memory>>,
    ) -> Result<Tensor<D::Memory>> {
        let (x, n) = (self.cast(x)?, x.len());
        let residual = residual.map(|residual| self.cast(residual)).transpose()?;
        let y = self.activation_of(&x.shape)?;
        let args = [
            x.read(),
            residual.as_ref().map_or(Arg::Null, Tensor::read),
            y.write(),
            long(n),
            Arg::Int(by.key[0] as i32),
            Arg::Int(by.key[1] as i32),
            Arg::Long(by.first as i64),
            Arg::Int(by.threshold().into()),
            float(by.scale()),
        ];
        self.run_each("dropout", n, &args)?;
        Ok(y)
    }
}

impl<D: Driver> Gpu<D> {
    /// Concatenates the rows of f32 tensors.
    pub(super) fn joined(&self, tensors: &[&Tensor<D::Memory>]) -> Result<Tensor<D::Memory>> {
        let tensors: Vec<_> = tensors.iter().map(|x| self.wide(x)).collect::<Result<_>>()?;
        let mut shape = tensors[0].shape.clone();
        shape[0] = tensors.iter().map(Tensor::n_rows).sum();
        let y = self.empty(&shape, Element::F32)?;
        let (mut rows, mut n_blocks, mut at) = (Vec::new(), 0, 0);
        for x in &tensors {
            let n = x.len();
            rows.extend([x.read(), long(n), long(n_blocks), long(at)]);
            n_blocks += n.div_ceil(CHUNK * BLOCK);
            at += n;
        }
        let args = [Arg::Table(&rows), int(tensors.len()), y.write()];
        self.run("join", [n_blocks, 1], BLOCK, &args)?;
        Ok(y)
    }

    pub(super) fn add(&self, into: &Tensor<D::Memory>, x: &Tensor<D::Memory>) -> Result<()> {
        assert_eq!(into.shape, x.shape, "accumulate");
        assert!(into.is_packed(), "accumulate into rows that lie apart");
        let n = x.len();
        let (kernel, x) = match into.element {
            Element::F32 => ("accumulate", self.wide(x)?),
            Element::Bf16 => ("accumulate_activation", self.cast(x)?),
        };
        self.run_each(kernel, n, &[into.write(), x.read(), long(n)])
    }

    pub(super) fn gate(&self, x: &Tensor<D::Memory>, f: Activation) -> Result<Tensor<D::Memory>> {
        let (x, rows, width) = (self.cast(x)?, x.n_rows(), x.width() / 2);
        let y = self.activation_of(&[rows, width])?;
        let args = [x.read(), y.write(), int(rows), int(width), number(f)];
        self.run_rows("gated", rows, width, &args)?;
        Ok(y)
    }

    pub(super) fn gate_backward(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
        f: Activation,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let (dy, x, rows, width) = (self.cast(dy)?, self.cast(x)?, x.n_rows(), x.width() / 2);
        assert_eq!(dy.width(), width, "gated_dx");
        let [dx, y] = [self.activation_of(&x.shape)?, self.activation_of(&dy.shape)?];
        let args = [dy.read(), x.read(), dx.write(), y.write(), int(rows), int(width), number(f)];
        self.run_rows("gated_dx", rows, width, &args)?;
        Ok((dx, y))
    }

    pub(super) fn turn(
        &self,
        x: &Tensor<D::Memory>,
        table: &Tensor<D::Memory>,
        by: Rotary,
    ) -> Result<Tensor<D::Memory>> {
        let (x, dim) = (self.cast(x)?, table.width());
        let turned = by.heads * dim;
        assert!(turned <= x.width(), "rotary");
        let y = self.activation_of(&x.shape)?;
        let args = [
            x.read(),
            table.read(),
            y.write(),
            int(x.width()),
            int(table.n_rows()),
            int(turned),
            int(dim),
            float(if by.backward { -1.0 } else { 1.0 }),
        ];
        self.run("rotary", [x.n_rows(), 1], BLOCK, &args)?;
        Ok(y)
    }
}

/// Returns the number of a function in `kernels/pointwise.cu`.
fn number<M>(f: Activation) -> Arg<'static, M> {
    Arg::Int(match f {
        Activation::GeluTanh => 0,
        Activation::Gelu => 1,
        Activation::Tanh => 2,
        Activation::Silu => 3,
    })
}

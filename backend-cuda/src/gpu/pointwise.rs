//! Elements on their own.

use chimera_core::kernels::Result;

use super::{Driver, Element, Gpu, Tensor, long};

impl<D: Driver> Gpu<D> {
    pub(super) fn add(&self, into: &Tensor<D::Memory>, x: &Tensor<D::Memory>) -> Result<()> {
        assert_eq!(into.shape, x.shape, "accumulate");
        let n = x.len();
        let (kernel, x) = match into.element {
            Element::F32 => ("accumulate", self.wide(x)?),
            Element::Bf16 => ("accumulate_activation", self.cast(x)?),
        };
        self.run_each(kernel, n, &[into.write(), x.read(), long(n)])
    }

    pub(super) fn activate(&self, x: &Tensor<D::Memory>) -> Result<Tensor<D::Memory>> {
        let (x, n) = (self.cast(x)?, x.len());
        let y = self.activation(&x.shape)?;
        self.run_each("gelu", n, &[x.read(), y.write(), long(n)])?;
        Ok(y)
    }

    pub(super) fn activate_backward(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let (dy, x, n) = (self.cast(dy)?, self.cast(x)?, x.len());
        assert_eq!(dy.len(), n, "gelu_dx");
        let [dx, y] = [self.activation(&x.shape)?, self.activation(&x.shape)?];
        self.run_each("gelu_dx", n, &[dy.read(), x.read(), dx.write(), y.write(), long(n)])?;
        Ok((dx, y))
    }
}

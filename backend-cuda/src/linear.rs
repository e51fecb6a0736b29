//! Linear layers: the library's matrix product, which also adds bias and residual.
//!
//! bf16 products are slow with an odd number of classes, such as GPT-2's 50,257. If a weight has a
//! row per class, its bf16 copy is padded with rows of zeros to a multiple of 8. The result then
//! has columns of zeros, in later products too.

use chimera_core::device::Result;
use chimera_core::layers::{Layout, Linear};

use super::{Driver, Gpu, MatrixRef, Operand, Plus, Product, Tensor};

impl<D: Driver> Linear for Gpu<D> {
    fn linear(
        &self,
        x: &Tensor<D::Memory>,
        w: &Tensor<D::Memory>,
        layout: Layout,
        bias: Option<&Tensor<D::Memory>>,
        residual: Option<&Tensor<D::Memory>>,
    ) -> Result<Tensor<D::Memory>> {
        let (x, w, residual) =
            (self.matrix(x)?, self.weight(w)?, residual.map(|r| self.cast(r)).transpose()?);
        let bias = bias.map(|bias| self.weight(bias)).transpose()?;
        let (rows, (inputs, outputs)) = (x.n_rows(), sizes(&w.cast, layout));
        assert_eq!(x.width(), inputs, "linear");
        // With a residual it is the residual stream, which goes to other ranks.
        let is_padded = layout == Layout::OutIn && residual.is_none();
        let padded = if is_padded { w.n_rows } else { outputs };
        let n = bias.as_ref().map_or(padded, |bias| padded.min(bias.n_rows));
        let y = self.result_of(rows, outputs, n)?;
        self.queue().driver.multiply(&Product {
            m: rows,
            n,
            k: inputs,
            a: operand(&x, false),
            b: operand(&w.cast, layout == Layout::OutIn),
            into: result(&y),
            plus: residual.as_ref().map_or(Plus::Nothing, |residual| Plus::Other(residual.place())),
            bias: bias.as_ref().map(|bias| bias.cast.place()),
        })?;
        Ok(y)
    }

    fn linear_dx(
        &self,
        dy: &Tensor<D::Memory>,
        w: &Tensor<D::Memory>,
        layout: Layout,
    ) -> Result<Tensor<D::Memory>> {
        let (dy, w) = (self.matrix(dy)?, self.weight(w)?);
        let (rows, (inputs, outputs)) = (dy.n_rows(), sizes(&w.cast, layout));
        assert_eq!(dy.width(), outputs, "linear_dx");
        let dx = self.activation_of(&[rows, inputs])?;
        let is_padded = layout == Layout::OutIn && dy.pitch >= w.n_rows;
        self.queue().driver.multiply(&Product {
            m: rows,
            n: inputs,
            k: if is_padded { w.n_rows } else { outputs },
            a: operand(&dy, false),
            b: operand(&w.cast, layout == Layout::InOut),
            into: result(&dx),
            plus: Plus::Nothing,
            bias: None,
        })?;
        Ok(dx)
    }

    fn linear_dw(
        &self,
        x: &Tensor<D::Memory>,
        dy: &Tensor<D::Memory>,
        layout: Layout,
        dw: &mut Tensor<D::Memory>,
        d_bias: Option<&mut Tensor<D::Memory>>,
    ) -> Result<()> {
        let (x, dy) = (self.matrix(x)?, self.matrix(dy)?);
        let rows = x.n_rows();
        assert_eq!(rows, dy.n_rows(), "linear_dw");
        // x and dy swap if dw is transposed.
        let (down, across) = match layout {
            Layout::InOut => (&x, &dy),
            Layout::OutIn => (&dy, &x),
        };
        self.queue().driver.multiply(&Product {
            m: down.width(),
            n: across.width(),
            k: rows,
            a: operand(down, true),
            b: operand(across, false),
            into: result(dw),
            plus: Plus::Itself,
            bias: None,
        })?;
        match d_bias {
            Some(d_bias) => self.add_columns(&dy, d_bias),
            None => Ok(()),
        }
    }
}

/// Returns the inputs and outputs of a layer.
fn sizes<M>(w: &Tensor<M>, layout: Layout) -> (usize, usize) {
    match layout {
        Layout::InOut => (w.n_rows(), w.width()),
        Layout::OutIn => (w.width(), w.n_rows()),
    }
}

/// Returns the place of a result, and drops its cast copy.
fn result<M>(y: &Tensor<M>) -> MatrixRef<'_, M> {
    y.write();
    y.place()
}

fn operand<M>(x: &Tensor<M>, transposed: bool) -> Operand<'_, M> {
    Operand { place: x.place(), transposed }
}

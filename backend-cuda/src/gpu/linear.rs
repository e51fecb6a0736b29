//! Linear layers: the library's matrix product, and one pass for bias and residual together.

use chimera_core::device::Result;
use chimera_core::layers::Layout;

use super::{Arg, Driver, Gpu, Operand, Product, Tensor, int};

impl<D: Driver> Gpu<D> {
    pub(super) fn linear_forward(
        &self,
        x: &Tensor<D::Memory>,
        w: &Tensor<D::Memory>,
        layout: Layout,
        bias: Option<&Tensor<D::Memory>>,
        residual: Option<&Tensor<D::Memory>>,
    ) -> Result<Tensor<D::Memory>> {
        let (x, w) = (self.matrix(x)?, self.cast(w)?);
        let residual = residual.map(|residual| self.cast(residual)).transpose()?;
        let (rows, (inputs, outputs)) = (x.n_rows(), sizes(&w, layout));
        assert_eq!(x.width(), inputs, "linear");
        // With a residual it is the stream between blocks, which goes to other ranks.
        let y = match residual {
            Some(_) => self.activation_of(&[rows, outputs])?,
            None => self.result_of(rows, outputs)?,
        };
        self.product(
            [rows, outputs, inputs],
            operand(&x, false),
            operand(&w, layout == Layout::OutIn),
            &y,
            false,
        )?;
        if bias.is_some() || residual.is_some() {
            let args = [
                y.write(),
                bias.map_or(Arg::Null, Tensor::read),
                residual.as_ref().map_or(Arg::Null, Tensor::read),
                int(rows),
                int(outputs),
                int(y.pitch),
            ];
            self.run_rows("add_bias_residual", rows, outputs, &args)?;
        }
        Ok(y)
    }

    pub(super) fn linear_backward_input(
        &self,
        dy: &Tensor<D::Memory>,
        w: &Tensor<D::Memory>,
        layout: Layout,
    ) -> Result<Tensor<D::Memory>> {
        let (dy, w) = (self.matrix(dy)?, self.cast(w)?);
        let (rows, (inputs, outputs)) = (dy.n_rows(), sizes(&w, layout));
        assert_eq!(dy.width(), outputs, "linear_dx");
        let dx = self.activation_of(&[rows, inputs])?;
        self.product(
            [rows, inputs, outputs],
            operand(&dy, false),
            operand(&w, layout == Layout::InOut),
            &dx,
            false,
        )?;
        Ok(dx)
    }

    pub(super) fn linear_backward_weight(
        &self,
        x: &Tensor<D::Memory>,
        dy: &Tensor<D::Memory>,
        layout: Layout,
        dw: &Tensor<D::Memory>,
        d_bias: Option<&Tensor<D::Memory>>,
    ) -> Result<()> {
        let (x, dy) = (self.matrix(x)?, self.matrix(dy)?);
        let rows = x.n_rows();
        assert_eq!(rows, dy.n_rows(), "linear_dw");
        // x and dy change places where dw is transposed.
        let (down, across) = match layout {
            Layout::InOut => (&x, &dy),
            Layout::OutIn => (&dy, &x),
        };
        self.product(
            [down.width(), across.width(), rows],
            operand(down, true),
            operand(across, false),
            dw,
            true,
        )?;
        match d_bias {
            Some(d_bias) => self.add_columns(&dy, d_bias),
            None => Ok(()),
        }
    }

    fn product(
        &self,
        [m, n, k]: [usize; 3],
        a: Operand<'_, D::Memory>,
        b: Operand<'_, D::Memory>,
        into: &Tensor<D::Memory>,
        add: bool,
    ) -> Result<()> {
        into.write(); // forgets what was cast of it
        self.driver.multiply(&Product { m, n, k, a, b, into: into.place(), add })
    }
}

/// Inputs and outputs of a layer.
fn sizes<M>(w: &Tensor<M>, layout: Layout) -> (usize, usize) {
    match layout {
        Layout::InOut => (w.n_rows(), w.width()),
        Layout::OutIn => (w.width(), w.n_rows()),
    }
}

fn operand<M>(x: &Tensor<M>, transposed: bool) -> Operand<'_, M> {
    Operand { place: x.place(), transposed }
}

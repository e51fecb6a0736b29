//! Adapters with magnitudes (Liu et al., DoRA, 2024). With `V = W + alpha / rank B A`, output `j` is
//! `m[j] / |V[j]| (V x)[j] + bias[j]`. As in section 4.3 of the paper, norms are constants to the
//! gradient.
//!
//! Norms come from small products, so that no matrix like `W` is written:
//! `|V[j]|² = |W[j]|² + 2 s b·(A W[j]) + s² b·(A Aᵀ b)`, where `s` is the scale and `b = B[j]`.

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Layout, llama_layers};

use super::{AdaptedLinear, width};
use crate::model::operands::is_frozen;

/// The tensors of a linear map's adapter: `A`, `B`, magnitudes, and squared norms of `W`.
pub(super) const N_TENSORS: usize = 4;
const MAGNITUDES: usize = 2;
const SQUARES: usize = 3;

/// The factors of a layer's outputs; 1 for those without an adapter.
pub(super) struct Factors<T> {
    /// `1 / |V|`.
    pub(super) reciprocal_norms: T,
    /// `m / |V|`.
    pub(super) factors: T,
}

impl<D: Layers> AdaptedLinear<'_, D> {
    /// Returns the layer's outputs `m / |V| V x`, plus the bias and `residual` if there are any.
    pub(super) fn forward_with_magnitudes(
        &self,
        x: &D::Tensor,
        w: &[D::Tensor],
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        let device = self.device;
        let y = self.product(x, w, None, None)?;
        let factors = self.factors(w)?.factors;
        let Some(bias) = self.bias(w) else {
            return scale_columns(device, &y, &factors, residual);
        };
        let zeros = |rows: usize| device.zeros(&[rows, 1]);
        let (none, no_weights) = (zeros(device.shape(x)[0])?, zeros(width(device, &y))?);
        let added = device.linear(&none, &no_weights, Layout::OutIn, Some(bias), residual)?;
        scale_columns(device, &y, &factors, Some(&added))
    }

    /// Returns the factors of the layer's outputs.
    pub(super) fn factors(&self, w: &[D::Tensor]) -> Result<Factors<D::Tensor>> {
        let device = self.device;
        let n_outputs = self.n_outputs(w);
        let mut squares = self.joined(w, n_outputs, SQUARES)?;
        for (_, map, tensors) in self.adapted(w) {
            let [a, b] = [&tensors[0], &tensors[1]];
            let b = self.transposed(&self.whole(map, b, n_outputs)?)?;
            let of_w = device.linear(a, &w[0], self.layout, None, None)?;
            let gram = device.linear(a, a, Layout::OutIn, None, None)?;
            let of_v = device.linear(&gram, &b, Layout::InOut, None, Some(&of_w))?;
            add_products(device, &b, &of_w, &mut squares)?;
            add_products(device, &b, &of_v, &mut squares)?;
        }
        let reciprocal_norms = device.reciprocal_roots(&squares)?;
        let magnitudes = self.joined(w, n_outputs, MAGNITUDES)?;
        let factors = scale_vector(device, &magnitudes, &reciprocal_norms)?;
        Ok(Factors { reciprocal_norms, factors })
    }

    /// Returns the gradient of the magnitudes of all outputs.
    pub(super) fn d_magnitudes(
        &self,
        x: &D::Tensor,
        dy: &D::Tensor,
        w: &[D::Tensor],
        reciprocal_norms: &D::Tensor,
    ) -> Result<D::Tensor> {
        let device = self.device;
        let of_v = self.product(x, w, None, None)?;
        let mut sums = device.zeros(&[width(device, dy)])?;
        add_products(device, dy, &of_v, &mut sums)?;
        scale_vector(device, &sums, reciprocal_norms)
    }

    /// Adds its part of the magnitudes' gradients to an accumulator of a linear map.
    pub(super) fn add_d_magnitudes(
        &self,
        (first, n): (usize, usize),
        d_magnitudes: &D::Tensor,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        let into = &mut into[MAGNITUDES];
        if is_frozen(self.device, into) {
            return Ok(());
        }
        self.device.accumulate(into, &self.device.rows(d_magnitudes, first, n)?)
    }

    /// Returns a vector of each adapter for all of the layer's outputs, with 1 where there is none.
    fn joined(&self, w: &[D::Tensor], n_outputs: usize, which: usize) -> Result<D::Tensor> {
        let device = self.device;
        let ones = |n: usize| device.upload_vec(&[n], vec![1.0; n]);
        let (mut parts, mut end) = (Vec::new(), 0);
        for (_, map, tensors) in self.adapted(w) {
            if map.first > end {
                parts.push(ones(map.first - end)?);
            }
            parts.push(tensors[which].clone());
            end = map.first + map.outputs;
        }
        if end < n_outputs {
            parts.push(ones(n_outputs - end)?);
        }
        device.join(&parts.iter().collect::<Vec<_>>())
    }

    /// Returns `s Bᵀ` of a `B` with a row for each of the layer's outputs.
    fn transposed(&self, b: &D::Tensor) -> Result<D::Tensor> {
        let scale = self.scale.expect("adapters with magnitudes have a matrix of their scale");
        self.device.linear(scale, b, Layout::OutIn, None, None)
    }

    fn n_outputs(&self, w: &[D::Tensor]) -> usize {
        let [rows, columns] = [0, 1].map(|dimension| self.device.shape(&w[0])[dimension]);
        if self.layout == Layout::OutIn { rows } else { columns }
    }
}

/// Multiplies each column by its factor, and adds `residual` if given. The gradient of an RMS norm
/// does so at an input of zero.
pub(super) fn scale_columns<D: Layers>(
    device: &D,
    x: &D::Tensor,
    factors: &D::Tensor,
    residual: Option<&D::Tensor>,
) -> Result<D::Tensor> {
    let (zeros, ones) = (device.zeros(&device.shape(x))?, ones_of_rows(device, x)?);
    llama_layers(device)?.rms_norm_dx(x, &zeros, &ones, factors, residual)
}

/// Multiplies each element by its factor.
fn scale_vector<D: Layers>(device: &D, x: &D::Tensor, factors: &D::Tensor) -> Result<D::Tensor> {
    let shape = device.shape(x);
    let row = device.reshape(x, &[1, shape[0]])?;
    device.reshape(&scale_columns(device, &row, factors, None)?, &shape)
}

/// Adds the column sums of the products of two matrices' elements.
fn add_products<D: Layers>(
    device: &D,
    a: &D::Tensor,
    b: &D::Tensor,
    into: &mut D::Tensor,
) -> Result<()> {
    llama_layers(device)?.rms_norm_dw(a, b, &ones_of_rows(device, b)?, into)
}

/// Returns the statistics of rows that a norm leaves as they are.
fn ones_of_rows<D: Layers>(device: &D, x: &D::Tensor) -> Result<D::Tensor> {
    let rows = device.shape(x)[0];
    device.upload_vec(&[rows, 1], vec![1.0; rows])
}

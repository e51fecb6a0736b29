//! Linear layers with low-rank adapters: `y = W x + alpha / rank B (A x)`.

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Layout};

use super::operands::{Linear, is_frozen};

/// The adapters of a layer, by the linear maps in its matrix.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adapters(pub(super) [AdaptedMap; 3]);

/// The outputs of one linear map; there are none if it is not adapted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdaptedMap {
    pub(super) first: usize,
    pub(super) outputs: usize,
}

impl Adapters {
    /// Returns the number of tensors.
    pub(super) fn n_tensors(&self) -> usize {
        2 * self.maps().count()
    }

    fn maps(&self) -> impl Iterator<Item = AdaptedMap> {
        self.0.into_iter().filter(|map| map.outputs > 0)
    }
}

/// A linear layer of a block with its adapters.
pub(super) struct AdaptedLinear<'b, D: Layers> {
    pub(super) device: &'b D,
    pub(super) layout: Layout,
    pub(super) has_bias: bool,
    pub(super) adapters: Adapters,
    /// The scale of adapters, as a diagonal matrix, unless it is 1.
    pub(super) scale: Option<&'b D::Tensor>,
}

/// The operands of the weight gradients of a layer and of its adapters.
#[derive(Debug)]
pub(super) struct AdaptedOperands<T> {
    pub(super) linear: Linear<T>,
    /// By adapter: `A x` and its gradient, both with the scale.
    inner: Vec<[T; 2]>,
}

impl<T> From<Linear<T>> for AdaptedOperands<T> {
    /// A layer without adapters.
    fn from(linear: Linear<T>) -> AdaptedOperands<T> {
        AdaptedOperands { linear, inner: Vec::new() }
    }
}

impl<T> AdaptedOperands<T> {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        self.linear.tensors().into_iter().chain(self.inner.iter().flatten())
    }
}

impl<D: Layers> AdaptedLinear<'_, D> {
    fn n_own(&self) -> usize {
        1 + usize::from(self.has_bias)
    }

    /// Returns the adapted maps with their two matrices.
    fn pairs<'w>(
        &self,
        w: &'w [D::Tensor],
    ) -> impl Iterator<Item = (AdaptedMap, &'w [D::Tensor; 2])> {
        self.adapters.maps().collect::<Vec<_>>().into_iter().zip(w[self.n_own()..].as_chunks().0)
    }

    fn bias<'w>(&self, w: &'w [D::Tensor]) -> Option<&'w D::Tensor> {
        w[1..self.n_own()].first()
    }

    /// Returns the layer's outputs, plus `residual` if given.
    pub(super) fn forward(
        &self,
        x: &D::Tensor,
        w: &[D::Tensor],
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        let mut y = self.device.linear(x, &w[0], self.layout, self.bias(w), residual)?;
        for (map, [a, b]) in self.pairs(w) {
            let inner = self.scaled(self.device.linear(x, a, Layout::OutIn, None, None)?)?;
            let b = self.whole(map, b, outputs(self.device, &y))?;
            y = self.device.linear(&inner, &b, Layout::OutIn, None, Some(&y))?;
        }
        Ok(y)
    }

    /// Returns the gradient of the layer's input, and by adapter that of `A x`, with the scale.
    pub(super) fn dx(
        &self,
        dy: &D::Tensor,
        w: &[D::Tensor],
    ) -> Result<(D::Tensor, Vec<D::Tensor>)> {
        let device = self.device;
        let mut dx = device.linear_dx(dy, &w[0], self.layout)?;
        let mut d_inners = Vec::new();
        for (map, [a, b]) in self.pairs(w) {
            let b = self.whole(map, b, outputs(device, dy))?;
            let d_inner = self.scaled(device.linear_dx(dy, &b, Layout::OutIn)?)?;
            // The transpose of `A` maps it to the input.
            dx = device.linear(&d_inner, a, Layout::InOut, None, Some(&dx))?;
            d_inners.push(d_inner);
        }
        Ok((dx, d_inners))
    }

    /// Returns the operands of the weight gradients.
    pub(super) fn operands(
        &self,
        x: D::Tensor,
        dy: D::Tensor,
        d_inners: Vec<D::Tensor>,
        w: &[D::Tensor],
    ) -> Result<AdaptedOperands<D::Tensor>> {
        let mut inner = Vec::new();
        for ((_, [a, _]), d_inner) in self.pairs(w).zip(d_inners) {
            let of_x = self.device.linear(&x, a, Layout::OutIn, None, None)?;
            inner.push([self.scaled(of_x)?, d_inner]);
        }
        Ok(AdaptedOperands { linear: Linear { x, dy }, inner })
    }

    /// Adds the gradients of the layer's tensors, and frees the operands at once.
    pub(super) fn add_dw(
        &self,
        operands: AdaptedOperands<D::Tensor>,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        let device = self.device;
        let AdaptedOperands { linear, inner } = operands;
        let (own, of_adapters) = into.split_at_mut(self.n_own());
        let each = self.adapters.maps().zip(of_adapters.as_chunks_mut().0);
        for ((map, [d_a, d_b]), [inner, d_inner]) in each.zip(inner) {
            let of_a = Linear { x: linear.x.clone(), dy: d_inner };
            of_a.add(device, Layout::OutIn, d_a, None)?;
            self.add_db(map, inner, &linear.dy, d_b)?;
        }
        let (matrix, bias) = own.split_first_mut().expect("a linear layer has a matrix");
        linear.add(device, self.layout, matrix, bias.first_mut())
    }

    /// Adds the gradient of `B`, whose outputs may be some of the layer's.
    fn add_db(
        &self,
        map: AdaptedMap,
        inner: D::Tensor,
        dy: &D::Tensor,
        d_b: &mut D::Tensor,
    ) -> Result<()> {
        let device = self.device;
        let (all, rank) = (outputs(device, dy), outputs(device, &inner));
        let of_b = Linear { x: inner, dy: dy.clone() };
        if map.outputs == all || is_frozen(device, d_b) {
            return of_b.add(device, Layout::OutIn, d_b, None);
        }
        let mut of_all = device.zeros(&[all, rank])?;
        of_b.add(device, Layout::OutIn, &mut of_all, None)?;
        device.accumulate(d_b, &device.rows(&of_all, map.first, map.outputs)?)
    }

    /// Returns `B` with zeros for the outputs of the other linear maps in the layer's matrix.
    fn whole(&self, map: AdaptedMap, b: &D::Tensor, all: usize) -> Result<D::Tensor> {
        if map.outputs == all {
            return Ok(b.clone());
        }
        let rank = outputs(self.device, b);
        let zeros = |rows: usize| (rows > 0).then(|| self.device.zeros(&[rows, rank])).transpose();
        let (before, after) = (zeros(map.first)?, zeros(all - map.first - map.outputs)?);
        let parts: Vec<&D::Tensor> = before.iter().chain([b]).chain(&after).collect();
        self.device.join(&parts)
    }

    fn scaled(&self, inner: D::Tensor) -> Result<D::Tensor> {
        match self.scale {
            None => Ok(inner),
            Some(scale) => self.device.linear(&inner, scale, Layout::InOut, None, None),
        }
    }
}

/// Returns the number of columns.
fn outputs<D: Layers>(device: &D, rows: &D::Tensor) -> usize {
    device.shape(rows).last().copied().unwrap_or(0)
}

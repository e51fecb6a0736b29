//! Linear layers with low-rank adapters: `y = W x + alpha / rank B (A x)`, perhaps with
//! [dropout](dropout) of the adapters' inputs, or [magnitudes](dora) of the outputs.

mod dora;
mod dropout;

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Layout};

use super::operands::{Linear, is_frozen};

pub(super) use dropout::AdapterDropout;

/// The adapters of a layer, by the linear maps in its matrix.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adapters {
    pub(super) maps: [AdaptedMap; 3],
    /// Whether outputs have magnitudes (DoRA).
    pub(super) has_magnitudes: bool,
}

/// The outputs of one linear map; there are none if it is not adapted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdaptedMap {
    pub(super) first: usize,
    pub(super) outputs: usize,
}

impl Adapters {
    /// Returns the number of tensors.
    pub(super) fn n_tensors(&self) -> usize {
        self.n_of_map() * self.maps().count()
    }

    /// Returns the number of tensors of an adapted map: `A` and `B`, and with magnitudes two more.
    fn n_of_map(&self) -> usize {
        if self.has_magnitudes { dora::N_TENSORS } else { 2 }
    }

    /// Returns the adapted maps, with their numbers in the layer.
    fn maps(&self) -> impl Iterator<Item = (usize, AdaptedMap)> + use<> {
        self.maps.into_iter().enumerate().filter(|(_, map)| map.outputs > 0)
    }
}

/// A linear layer of a block with its adapters.
pub(super) struct AdaptedLinear<'b, D: Layers> {
    pub(super) device: &'b D,
    pub(super) layout: Layout,
    pub(super) has_bias: bool,
    pub(super) adapters: Adapters,
    /// The scale of adapters, as a diagonal matrix, unless it is 1 and there are no magnitudes.
    pub(super) scale: Option<&'b D::Tensor>,
    /// The dropout of the adapters' inputs.
    pub(super) dropout: Option<AdapterDropout>,
}

/// The operands of the weight gradients of a layer and of its adapters.
#[derive(Debug)]
pub(super) struct AdaptedOperands<T> {
    pub(super) linear: Linear<T>,
    /// By adapter: `A x` and its gradient, both with the scale.
    inner: Vec<[T; 2]>,
    /// The gradient of the magnitudes of all outputs.
    d_magnitudes: Option<T>,
}

/// The gradients that the input half of a layer's backward computes for its weight half.
pub(super) struct AdapterGradients<T> {
    /// By adapter: the gradient of `A x`, with the scale.
    inner: Vec<T>,
    /// With magnitudes, the gradient of `V x`, and the reciprocal norms of `V`.
    of_product: Option<[T; 2]>,
}

impl<T> From<Linear<T>> for AdaptedOperands<T> {
    /// A layer without adapters.
    fn from(linear: Linear<T>) -> AdaptedOperands<T> {
        AdaptedOperands { linear, inner: Vec::new(), d_magnitudes: None }
    }
}

impl<T> AdaptedOperands<T> {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        let of_adapters = self.inner.iter().flatten().chain(&self.d_magnitudes);
        self.linear.tensors().into_iter().chain(of_adapters)
    }
}

impl<D: Layers> AdaptedLinear<'_, D> {
    fn n_own(&self) -> usize {
        1 + usize::from(self.has_bias)
    }

    /// Returns the adapted maps with their numbers and their tensors.
    fn adapted<'w>(
        &self,
        w: &'w [D::Tensor],
    ) -> impl Iterator<Item = (usize, AdaptedMap, &'w [D::Tensor])> + use<'w, D> {
        let tensors = w[self.n_own()..].chunks_exact(self.adapters.n_of_map());
        self.adapters.maps().zip(tensors).map(|((nth, map), tensors)| (nth, map, tensors))
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
        if self.adapters.has_magnitudes {
            self.forward_with_magnitudes(x, w, residual)
        } else {
            self.product(x, w, self.bias(w), residual)
        }
    }

    /// Returns `W x + alpha / rank B (A x)`, plus `bias` and `residual` if given.
    fn product(
        &self,
        x: &D::Tensor,
        w: &[D::Tensor],
        bias: Option<&D::Tensor>,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        let mut y = self.device.linear(x, &w[0], self.layout, bias, residual)?;
        for (nth, map, tensors) in self.adapted(w) {
            let inner = self.inner(x, nth, &tensors[0])?;
            let b = self.whole(map, &tensors[1], width(self.device, &y))?;
            y = self.device.linear(&inner, &b, Layout::OutIn, None, Some(&y))?;
        }
        Ok(y)
    }

    /// Returns `A x` of the linear map number `nth`, with the scale.
    fn inner(&self, x: &D::Tensor, nth: usize, a: &D::Tensor) -> Result<D::Tensor> {
        let x = self.dropped(nth, x)?;
        self.scaled(self.device.linear(&x, a, Layout::OutIn, None, None)?)
    }

    /// Returns the gradient of the layer's input, and those that [`operands`](Self::operands) needs.
    pub(super) fn dx(
        &self,
        dy: &D::Tensor,
        w: &[D::Tensor],
    ) -> Result<(D::Tensor, AdapterGradients<D::Tensor>)> {
        let device = self.device;
        let of_product = if self.adapters.has_magnitudes {
            let dora::Factors { reciprocal_norms, factors } = self.factors(w)?;
            Some([dora::scale_columns(device, dy, &factors, None)?, reciprocal_norms])
        } else {
            None
        };
        let dy = of_product.as_ref().map_or(dy, |[of_product, _]| of_product);
        let mut dx = device.linear_dx(dy, &w[0], self.layout)?;
        let mut inner = Vec::new();
        for (nth, map, tensors) in self.adapted(w) {
            let [a, b] = [&tensors[0], &tensors[1]];
            let b = self.whole(map, b, width(device, dy))?;
            let d_inner = self.scaled(device.linear_dx(dy, &b, Layout::OutIn)?)?;
            // The transpose of `A` maps it to the input.
            dx = match &self.dropout {
                None => device.linear(&d_inner, a, Layout::InOut, None, Some(&dx))?,
                Some(by) => {
                    let d_dropped = device.linear(&d_inner, a, Layout::InOut, None, None)?;
                    by.apply(device, nth, &d_dropped, Some(&dx))?
                }
            };
            inner.push(d_inner);
        }
        Ok((dx, AdapterGradients { inner, of_product }))
    }

    /// Returns the operands of the weight gradients.
    pub(super) fn operands(
        &self,
        x: D::Tensor,
        dy: D::Tensor,
        gradients: AdapterGradients<D::Tensor>,
        w: &[D::Tensor],
    ) -> Result<AdaptedOperands<D::Tensor>> {
        let mut inner = Vec::new();
        for ((nth, _, tensors), d_inner) in self.adapted(w).zip(gradients.inner) {
            inner.push([self.inner(&x, nth, &tensors[0])?, d_inner]);
        }
        let Some([of_product, reciprocal_norms]) = gradients.of_product else {
            return Ok(AdaptedOperands { linear: Linear { x, dy }, inner, d_magnitudes: None });
        };
        let d_magnitudes = Some(self.d_magnitudes(&x, &dy, w, &reciprocal_norms)?);
        Ok(AdaptedOperands { linear: Linear { x, dy: of_product }, inner, d_magnitudes })
    }

    /// Adds the gradients of the layer's tensors, and frees the operands at once.
    pub(super) fn add_dw(
        &self,
        operands: AdaptedOperands<D::Tensor>,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        let device = self.device;
        let AdaptedOperands { linear, inner, d_magnitudes } = operands;
        let (own, of_adapters) = into.split_at_mut(self.n_own());
        let tensors = of_adapters.chunks_exact_mut(self.adapters.n_of_map());
        for (((nth, map), into), [inner, d_inner]) in self.adapters.maps().zip(tensors).zip(inner) {
            let of_a = Linear { x: self.dropped(nth, &linear.x)?, dy: d_inner };
            of_a.add(device, Layout::OutIn, &mut into[0], None)?;
            self.add_db(map, inner, &linear.dy, &mut into[1])?;
            if let Some(d_magnitudes) = &d_magnitudes {
                self.add_d_magnitudes((map.first, map.outputs), d_magnitudes, into)?;
            }
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
        let (all, rank) = (width(device, dy), width(device, &inner));
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
        let rank = width(self.device, b);
        let zeros = |rows: usize| (rows > 0).then(|| self.device.zeros(&[rows, rank])).transpose();
        let (before, after) = (zeros(map.first)?, zeros(all - map.first - map.outputs)?);
        let parts: Vec<&D::Tensor> = before.iter().chain([b]).chain(&after).collect();
        self.device.join(&parts)
    }

    /// Applies the dropout of the linear map number `nth` to the layer's input.
    fn dropped(&self, nth: usize, x: &D::Tensor) -> Result<D::Tensor> {
        match &self.dropout {
            None => Ok(x.clone()),
            Some(by) => by.apply(self.device, nth, x, None),
        }
    }

    fn scaled(&self, inner: D::Tensor) -> Result<D::Tensor> {
        match self.scale {
            None => Ok(inner),
            Some(scale) => self.device.linear(&inner, scale, Layout::InOut, None, None),
        }
    }
}

/// Returns the number of columns.
fn width<D: Layers>(device: &D, rows: &D::Tensor) -> usize {
    device.shape(rows).last().copied().unwrap_or(0)
}

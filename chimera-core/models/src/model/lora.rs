//! Low-rank adapters of linear layers (Hu et al., LoRA, 2021): `y = W x + alpha / rank B (A x)`.
//!
//! The matrices `A: [rank, inputs]` and `B: [outputs, rank]` are ordinary parameters; all others
//! are frozen. Each of several linear maps that lie side by side in one matrix has its own.

use std::ops::Range;

use chimera_engine::device::{Device, Result};
use chimera_engine::layers::{Layers, Layout};
use chimera_engine::stage::{Init, Param, ParamPatterns};

use super::config::{Family, ModelConfig};
use super::form::{DOWN, LAYERS, OUT, QKV, UP};
use super::operands::Linear;

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// The factor of an adapter's output is `alpha / rank`.
    pub alpha: usize,
    /// Names of adapted layers, such as `self_attn.q_proj` or `q_proj`; all if it is empty.
    pub targets: ParamPatterns,
}

impl Lora {
    /// Returns the factor of an adapter's output.
    pub fn scale(&self) -> f64 {
        self.alpha as f64 / self.rank as f64
    }

    /// Returns true if a layer, such as `self_attn.q_proj`, is adapted.
    fn targets(&self, layer: &str) -> bool {
        let name = layer.rsplit('.').next().unwrap_or(layer);
        self.targets.is_empty() || self.targets.matches(layer) || self.targets.matches(name)
    }

    /// Adds adapters behind the tensors of each linear layer, and freezes all other tensors.
    pub(super) fn adapted(&self, family: &dyn Family, params: Vec<Param>) -> Vec<Param> {
        let mut adapted = Vec::with_capacity(params.len());
        let (mut adapters, mut last) = (Vec::new(), String::new());
        for param in params {
            if let Some(layer) = &param.shown {
                adapters = self.adapters(family, &param);
                last = layer.bias.clone().unwrap_or_else(|| param.name.clone());
            }
            let is_last = param.name == last;
            adapted.push(Param { frozen: true, ..param });
            if is_last {
                adapted.append(&mut adapters);
            }
        }
        adapted
    }

    /// Returns the adapters of a matrix.
    fn adapters(&self, family: &dyn Family, matrix: &Param) -> Vec<Param> {
        let (inputs, _) = matrix.features().unwrap_or_default();
        let maps = self.maps(family, matrix).into_iter();
        let of_map = |(name, outputs): (String, usize)| {
            let bound = 1.0 / (inputs as f64).sqrt();
            let tensor = |what, shape: [usize; 2], init| {
                Param::new(format!("{name}.lora_{what}.weight"), shape, init)
            };
            [
                tensor("A", [self.rank, inputs], Init::Uniform(bound)),
                tensor("B", [outputs, self.rank], Init::Zeros),
            ]
        };
        maps.filter(|(_, outputs)| *outputs > 0).flat_map(of_map).collect()
    }

    /// Returns the names and outputs of the linear maps in a matrix; 0 outputs if one is not
    /// adapted.
    fn maps(&self, family: &dyn Family, matrix: &Param) -> Vec<(String, usize)> {
        let (block, layer) = split_name(&matrix.name);
        let (_, outputs) = matrix.features().unwrap_or_default();
        let names = family.linear_maps(layer);
        let extents = if names.len() == 1 { vec![outputs] } else { matrix.linear_maps.clone() };
        let maps = names.into_iter().zip(extents);
        let adapted = maps.map(|(name, outputs)| {
            (format!("{block}{name}"), if self.targets(name) { outputs } else { 0 })
        });
        adapted.collect()
    }

    /// Adds `alpha / rank B A` to the part of a matrix with these outputs.
    fn merge(
        &self,
        matrix: &Param,
        values: &mut [f32],
        outputs: Range<usize>,
        (a, b): (&[f32], &[f32]),
    ) {
        let (n_inputs, n_outputs) = matrix.features().unwrap_or_default();
        let is_inputs_first = matrix.shown.as_ref().is_some_and(|layer| layer.inputs_first);
        for (output, b) in outputs.zip(b.chunks(self.rank)) {
            for input in 0..n_inputs {
                let products = b.iter().enumerate();
                let product: f64 =
                    products.map(|(k, b)| f64::from(*b) * f64::from(a[k * n_inputs + input])).sum();
                let at = if is_inputs_first {
                    input * n_outputs + output
                } else {
                    output * n_inputs + input
                };
                values[at] = (f64::from(values[at]) + self.scale() * product) as f32;
            }
        }
    }

    /// Returns true if a parameter of this name belongs to an adapter.
    pub fn is_adapter(name: &str) -> bool {
        name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")
    }

    /// Returns the places of adapters in the layers of a block with these tensors.
    pub(super) fn places(&self, family: &dyn Family, block: &[Param]) -> [Adapters; LAYERS] {
        let mut places = [Adapters::default(); LAYERS];
        let matrices = block.iter().filter(|param| param.shown.is_some());
        for (layer, matrix) in [QKV, OUT, UP, DOWN].into_iter().zip(matrices) {
            let mut first = 0;
            // A single map begins at 0, and its extent does not matter.
            let maps = self.maps(family, matrix).into_iter().zip(&matrix.linear_maps);
            for (place, ((_, outputs), extent)) in places[layer].0.iter_mut().zip(maps) {
                *place = AdaptedMap { first, outputs };
                first += extent;
            }
        }
        places
    }
}

impl ModelConfig {
    /// Returns the weights of the model with its adapters merged into them.
    pub fn merged(&self, lora: &Lora, weights: Vec<(Param, Vec<f32>)>) -> Vec<(Param, Vec<f32>)> {
        let is_adapter = |(param, _): &(Param, Vec<f32>)| Lora::is_adapter(&param.name);
        let (adapters, mut own): (Vec<_>, Vec<_>) = weights.into_iter().partition(is_adapter);
        let find = |name: String| {
            adapters.iter().find(|(param, _)| param.name == name).map(|(_, values)| values)
        };
        for (matrix, values) in own.iter_mut().filter(|(param, _)| param.shown.is_some()) {
            let mut first = 0;
            let maps = lora.maps(self.architecture.0, matrix).into_iter().zip(&matrix.linear_maps);
            for ((name, n_outputs), extent) in maps {
                let [a, b] = ["A", "B"].map(|what| find(format!("{name}.lora_{what}.weight")));
                if let (Some(a), Some(b)) = (a, b) {
                    lora.merge(matrix, values, first..first + n_outputs, (a, b));
                }
                first += extent;
            }
        }
        own
    }
}

/// Splits `layers.3.self_attn.q_proj.weight` into `layers.3.` and `self_attn.q_proj`.
fn split_name(name: &str) -> (&str, &str) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let end = name.match_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    name.split_at(end)
}

/// The adapters of a layer, by the linear maps in its matrix.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adapters([AdaptedMap; 3]);

/// The outputs of one linear map; there are none if it is not adapted.
#[derive(Clone, Copy, Debug, Default)]
struct AdaptedMap {
    first: usize,
    outputs: usize,
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
        if map.outputs == all || super::operands::is_frozen(device, d_b) {
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

/// Returns the scale of adapters as a diagonal matrix, unless it is 1.
pub(super) fn diagonal<D: Device>(device: &D, lora: &Lora) -> Result<Option<D::Tensor>> {
    if lora.alpha == lora.rank {
        return Ok(None);
    }
    let mut values = vec![0.0; lora.rank * lora.rank];
    values.iter_mut().step_by(lora.rank + 1).for_each(|x| *x = lora.scale() as f32);
    device.upload_vec(&[lora.rank; 2], values).map(Some)
}

//! Low-rank adapters of linear layers (Hu et al., LoRA, 2021): `y = W x + alpha / rank B (A x)`.
//!
//! The matrices `A: [rank, inputs]` and `B: [outputs, rank]` are ordinary parameters; all others
//! are frozen. Each of several linear maps that lie side by side in one matrix has its own.

use std::ops::Range;

use chimera_engine::device::{Device, Result};
use chimera_engine::stage::{Init, Param};

use super::adapted::{AdaptedMap, Adapters};
use super::config::{Cut, Family, ModelConfig};
use super::form::{DOWN, LAYERS, OUT, QKV, UP};
use super::tuning::{Lora, Tuning};

impl Tuning {
    /// Adds adapters, and marks the parameters that are frozen.
    pub(super) fn apply(&self, family: &dyn Family, params: Vec<Param>) -> Vec<Param> {
        let mut params = match &self.lora {
            Some(lora) => lora.adapted(family, params),
            None => params,
        };
        params.iter_mut().for_each(|param| param.frozen |= self.freeze.matches(&param.name));
        let packed = |param: Param| {
            let maps = extents(family, &param);
            param.packed(self.frozen_weights, maps)
        };
        params.into_iter().map(packed).collect()
    }
}

impl Lora {
    /// Adds adapters after the tensors of each linear layer, and freezes all other tensors.
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
        let maps = family.linear_maps(layer).into_iter().zip(extents(family, matrix));
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
    /// Returns the names of the linear layers in a block, such as `self_attn.q_proj`.
    pub fn linear_layers(&self) -> Vec<String> {
        let block = self.params(&Cut { blocks: 0..1, ..Cut::default() });
        let matrices = block.iter().filter(|param| param.shown.is_some());
        let names = matrices.flat_map(|matrix| {
            let (_, layer) = split_name(&matrix.name);
            self.architecture.0.linear_maps(layer)
        });
        names.map(str::to_owned).collect()
    }

    /// Returns the part of the matrices of a stage that is trained, by their elements: the part of
    /// the work for weight gradients that is done.
    pub fn trained_part(&self, cut: &Cut) -> f64 {
        if cut.tuning == Tuning::default() {
            return 1.0;
        }
        let params = self.params(cut);
        let matrices = params.iter().filter(|param| param.shape.len() == 2);
        let sum = |params: &mut dyn Iterator<Item = &Param>| {
            params.map(|param| param.n_elements() as f64).sum::<f64>()
        };
        let trained = sum(&mut matrices.clone().filter(|param| !param.frozen));
        trained / sum(&mut { matrices }).max(1.0)
    }

    /// Returns the number of blocks at the start of the stage `cut` whose input gradients nobody
    /// needs: neither their weights are trained nor any before them.
    pub(super) fn n_idle_blocks(&self, cut: &Cut) -> usize {
        let is_frozen = |cut: &Cut| self.params(cut).iter().all(|param| param.frozen);
        let before = Cut { blocks: 0..cut.blocks.start, first: true, last: false, ..cut.clone() };
        if cut.tuning == Tuning::default() || !is_frozen(&before) {
            return 0;
        }
        cut.blocks.clone().take_while(|block| is_frozen(&cut.block(*block))).count()
    }

    /// Returns the tensors of the first block of the stage `cut` without adapters, or of block 0.
    pub(super) fn block_params(&self, cut: &Cut) -> Vec<Param> {
        let block = Cut { tuning: Tuning::default(), ..cut.block(cut.blocks.start) };
        self.params(&block)
    }

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

impl Cut {
    /// Returns one block.
    fn block(&self, block: usize) -> Cut {
        Cut { blocks: block..block + 1, first: false, last: false, ..self.clone() }
    }
}

/// Returns the outputs of each linear map in a matrix.
fn extents(family: &dyn Family, matrix: &Param) -> Vec<usize> {
    let (_, outputs) = matrix.features().unwrap_or_default();
    let n_maps = family.linear_maps(split_name(&matrix.name).1).len();
    if n_maps == 1 { vec![outputs] } else { matrix.linear_maps.clone() }
}

/// Splits `layers.3.self_attn.q_proj.weight` into `layers.3.` and `self_attn.q_proj`.
fn split_name(name: &str) -> (&str, &str) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let end = name.match_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
    name.split_at(end)
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

//! Low-rank adapters of linear layers (Hu et al., LoRA, 2021): `y = W x + alpha / rank B (A x)`.
//!
//! The matrices `A: [rank, inputs]` and `B: [outputs, rank]` are ordinary parameters; all others
//! are frozen. Each of several linear maps that lie side by side in one matrix has its own. With
//! magnitudes, an adapter has two more parameters: the magnitudes, and frozen squared norms.

use std::ops::Range;

use chimera_engine::device::{Device, Result, WeightFormat};
use chimera_engine::stage::{Init, OutputNorms, Param};

use super::adapted::{AdaptedMap, Adapters};
use super::config::{Cut, Family, ModelConfig};
use super::form::{DOWN, LAYERS, OUT, QKV, UP};
use super::tuning::{Lora, MAGNITUDES, SQUARES, Tuning};

impl Tuning {
    /// Adds adapters, and marks the parameters that are frozen.
    pub(super) fn apply(&self, family: &dyn Family, params: Vec<Param>) -> Vec<Param> {
        let mut params = match &self.lora {
            Some(lora) => lora.adapted(family, params, self.frozen_weights),
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
    fn adapted(
        &self,
        family: &dyn Family,
        params: Vec<Param>,
        frozen_weights: WeightFormat,
    ) -> Vec<Param> {
        let mut adapted = Vec::with_capacity(params.len());
        let (mut adapters, mut last) = (Vec::new(), String::new());
        for param in params {
            if let Some(layer) = &param.shown {
                let held = Param { frozen: true, ..param.clone() };
                let held = held.packed(frozen_weights, extents(family, &param));
                adapters = self.adapters(family, &held);
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

    /// Returns the adapters of a matrix, as it is held.
    fn adapters(&self, family: &dyn Family, matrix: &Param) -> Vec<Param> {
        let (inputs, _) = matrix.features().unwrap_or_default();
        let bound = 1.0 / (inputs as f64).sqrt();
        let mut params = Vec::new();
        for (name, outputs) in self.outputs(family, matrix) {
            let n_outputs = outputs.len();
            let tensor = |what, shape: [usize; 2], init| {
                Param::new(format!("{name}.lora_{what}.weight"), shape, init)
            };
            params.push(tensor("A", [self.rank, inputs], Init::Uniform(bound)));
            params.push(tensor("B", [n_outputs, self.rank], Init::Zeros));
            if self.has_magnitudes {
                let norms = |end, is_squared| {
                    let (matrix, outputs) = (matrix.clone(), outputs.clone());
                    let norms = OutputNorms { matrix, outputs, is_squared };
                    let init = Init::Norms(Box::new(norms));
                    Param {
                        frozen: is_squared,
                        ..Param::new(name.clone() + end, [n_outputs], init)
                    }
                };
                params.extend([norms(MAGNITUDES, false), norms(SQUARES, true)]);
            }
        }
        params
    }

    /// Returns the names and outputs of the adapted linear maps in a matrix.
    fn outputs(&self, family: &dyn Family, matrix: &Param) -> Vec<(String, Range<usize>)> {
        let mut first = 0;
        let maps = self.maps(family, matrix).into_iter().zip(extents(family, matrix));
        let ranges = maps.map(|((name, n_outputs), extent)| {
            let outputs = first..first + n_outputs;
            first += extent;
            (name, outputs)
        });
        ranges.filter(|(_, outputs)| !outputs.is_empty()).collect()
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

    /// Adds `alpha / rank B A` to the part of a matrix with these outputs, and gives each output its
    /// magnitude, if there are any.
    fn merge(
        &self,
        matrix: &Param,
        values: &mut [f32],
        outputs: Range<usize>,
        (a, b, magnitudes): (&[f32], &[f32], Option<&[f32]>),
    ) {
        let (n_inputs, n_outputs) = matrix.features().unwrap_or_default();
        let is_inputs_first = matrix.shown.as_ref().is_some_and(|layer| layer.inputs_first);
        let place = |output: usize, input: usize| {
            if is_inputs_first { input * n_outputs + output } else { output * n_inputs + input }
        };
        for (nth, (output, b)) in outputs.zip(b.chunks(self.rank)).enumerate() {
            let merged = (0..n_inputs).map(|input| {
                let products = b.iter().enumerate();
                let product: f64 =
                    products.map(|(k, b)| f64::from(*b) * f64::from(a[k * n_inputs + input])).sum();
                f64::from(values[place(output, input)]) + self.scale() * product
            });
            let merged: Vec<f64> = merged.collect();
            let norm = || merged.iter().map(|x| x * x).sum::<f64>().sqrt();
            let factor = match magnitudes.map(|magnitudes| (f64::from(magnitudes[nth]), norm())) {
                None => 1.0,
                Some((_, 0.0)) => 0.0,
                Some((magnitude, norm)) => magnitude / norm,
            };
            for (input, value) in merged.iter().enumerate() {
                values[place(output, input)] = (factor * value) as f32;
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
            let adapters = &mut places[layer];
            for (place, ((_, outputs), extent)) in adapters.maps.iter_mut().zip(maps) {
                *place = AdaptedMap { first, outputs };
                adapters.has_magnitudes |= self.has_magnitudes && outputs > 0;
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

    /// Returns the fraction of a stage's matrix elements that is trained, which is also the
    /// fraction of the work for weight gradients that is done.
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
        let is_added = |(param, _): &(Param, Vec<f32>)| Lora::is_added(&param.name);
        let (adapters, mut own): (Vec<_>, Vec<_>) = weights.into_iter().partition(is_added);
        let find = |name: String| {
            adapters.iter().find(|(param, _)| param.name == name).map(|(_, values)| &values[..])
        };
        for (matrix, values) in own.iter_mut().filter(|(param, _)| param.shown.is_some()) {
            for (name, outputs) in lora.outputs(self.architecture.0, matrix) {
                let [a, b] = ["A", "B"].map(|what| find(format!("{name}.lora_{what}.weight")));
                if let (Some(a), Some(b)) = (a, b) {
                    lora.merge(matrix, values, outputs, (a, b, find(name + MAGNITUDES)));
                }
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

/// Returns the scale of adapters as a diagonal matrix, unless it is 1 and there are no magnitudes.
pub(super) fn diagonal<D: Device>(device: &D, lora: &Lora) -> Result<Option<D::Tensor>> {
    if lora.alpha == lora.rank && !lora.has_magnitudes {
        return Ok(None);
    }
    let mut values = vec![0.0; lora.rank * lora.rank];
    values.iter_mut().step_by(lora.rank + 1).for_each(|x| *x = lora.scale() as f32);
    device.upload_vec(&[lora.rank; 2], values).map(Some)
}

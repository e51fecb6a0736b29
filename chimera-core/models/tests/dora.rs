//! Adapters with magnitudes: a model with them computes what the merged model does, and its
//! gradients are those of the merged model whose norms are held.

use std::collections::BTreeMap;

use chimera_engine::device::Device;
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::stage::{Init, Micro, Output, OutputNorms, Param, Stage, initial};
use chimera_models::model::{Architecture, Cut, DecoderStage, Llama, Lora, ModelConfig, Tuning};

const MAGNITUDES: &str = ".lora_magnitude_vector";
const RANK: usize = 2;
const SCALE: f64 = 1.5;

type Named = BTreeMap<String, Tensor>;

/// A model, and adapters of some of its layers.
struct Adapted {
    model: ModelConfig,
    lora: Lora,
    params: Vec<Param>,
    weights: Named,
}

fn models() -> Vec<Adapted> {
    let llama = Llama { kv_heads: 1, qkv_bias: true, ..Llama::usual(8, 2) };
    let of_each = [
        (Architecture::GPT2, None, ""),
        (Architecture::GPT2, None, "attn.c_proj; mlp.c_fc"),
        (Architecture::LLAMA, Some(llama), ""),
        (Architecture::LLAMA, Some(llama), "k_proj; up_proj; down_proj"),
    ];
    of_each.map(|(architecture, llama, targets)| adapted(architecture, llama, targets)).into()
}

fn adapted(architecture: Architecture, llama: Option<Llama>, targets: &str) -> Adapted {
    let model = ModelConfig {
        architecture,
        layers: 2,
        hidden: 8,
        heads: 2,
        context: 4,
        vocab: 11,
        tied: false,
        llama,
        end_of_text: None,
    };
    let targets = targets.parse().unwrap_or_default();
    let lora = Lora { rank: RANK, alpha: 3, targets, dropout: 0.0, has_magnitudes: true };
    let tuning = Tuning { lora: Some(lora.clone()), ..Tuning::default() };
    let params = model.params(&Cut { tuning, ..Cut::whole(&model) });
    let drawn = |param: &Param| {
        let noisy = Param { init: Init::Normal(0.3), ..param.clone() };
        initial(&noisy, 5)
    };
    let weights = params.iter().map(|param| {
        let mut values = drawn(param);
        if let Init::Norms(norms) = &param.init {
            // Squares are of the weights, and magnitudes near the norms.
            let part = if param.frozen { 0.0 } else { 1.0 };
            let norms = norms.of(drawn(&norms.matrix));
            values.iter_mut().zip(norms).for_each(|(value, norm)| *value = part * *value + norm);
        }
        (param.name.clone(), Reference.upload(&param.shape, &values).expect("room"))
    });
    let weights = weights.collect();
    Adapted { model, lora, params, weights }
}

impl Adapted {
    /// The magnitudes, with the names of their adapters.
    fn magnitudes(&self) -> impl Iterator<Item = (&str, &OutputNorms)> {
        self.params.iter().filter_map(|param| match &param.init {
            Init::Norms(norms) => Some((param.name.strip_suffix(MAGNITUDES)?, &**norms)),
            _ => None,
        })
    }

    /// The norms of `W + s B A`, by adapter and output.
    fn norms(&self, weights: &Named) -> BTreeMap<String, Vec<f64>> {
        let of_adapter = |(name, norms): (&str, &OutputNorms)| {
            let rows = rows(name, norms, weights);
            let norm = |row: Vec<(usize, f64)>| row.iter().map(|(_, x)| x * x).sum::<f64>().sqrt();
            (name.to_owned(), rows.into_iter().map(norm).collect())
        };
        self.magnitudes().map(of_adapter).collect()
    }

    /// The loss of the merged model, with these norms.
    fn merged_loss(&self, weights: &Named, norms: &BTreeMap<String, Vec<f64>>) -> f64 {
        let mut merged = weights.clone();
        for (name, of_map) in self.magnitudes() {
            let magnitudes = &weights[&format!("{name}{MAGNITUDES}")].data;
            let rows = rows(name, of_map, weights);
            for ((row, magnitude), norm) in rows.into_iter().zip(magnitudes).zip(&norms[name]) {
                let matrix = merged.get_mut(&of_map.matrix.name).expect("a matrix");
                row.into_iter().for_each(|(place, x)| matrix.data[place] = magnitude / norm * x);
            }
        }
        self.loss(Cut::whole(&self.model), &merged).0
    }

    /// The loss of the model with its adapters beside it, and the gradients.
    fn loss(&self, cut: Cut, weights: &Named) -> (f64, Named) {
        let stage = DecoderStage::new(Reference, &self.model, 4, cut).expect("a stage");
        let micro = Micro {
            step: 0,
            sample: 0,
            input: &[1, 5, 9, 2, 4, 4, 0, 10],
            target: &[5, 9, 2, 7, 4, 0, 10, 3],
            loss_scale: 0.125,
            training: true,
        };
        let w: Vec<_> = stage.params().iter().map(|param| weights[&param.name].clone()).collect();
        let (output, saved) = stage.forward(&w, &micro, None).expect("runs");
        let Output::Loss { loss, grad } = output else { panic!("there are targets") };
        let (dx, deferred) = stage.backward_input(&w, &micro, saved, grad).expect("runs");
        assert!(dx.is_none());
        let zeros = |param: &Param| Reference.zeros(&param.gradient_shape()).expect("room");
        let mut into: Vec<_> = stage.params().iter().map(zeros).collect();
        stage.backward_weight(&micro, deferred, &mut into).expect("runs");
        let names = stage.params().iter().map(|param| param.name.clone());
        (loss.data[0], names.zip(into).collect())
    }

    fn adapted_loss(&self) -> (f64, Named) {
        let tuning = Tuning { lora: Some(self.lora.clone()), ..Tuning::default() };
        self.loss(Cut { tuning, ..Cut::whole(&self.model) }, &self.weights)
    }
}

/// `W + s B A` of an adapter, by output: each element with its place in the matrix.
fn rows(name: &str, of_map: &OutputNorms, weights: &Named) -> Vec<Vec<(usize, f64)>> {
    let matrix = &weights[&of_map.matrix.name];
    let [a, b] = ["A", "B"].map(|what| &weights[&format!("{name}.lora_{what}.weight")].data);
    let (n_inputs, n_outputs) = of_map.matrix.features().expect("a linear layer");
    let is_inputs_first = of_map.matrix.shown.as_ref().expect("a linear layer").inputs_first;
    let row = |(nth, output): (usize, usize)| {
        let element = |input: usize| {
            let place = if is_inputs_first {
                input * n_outputs + output
            } else {
                output * n_inputs + input
            };
            let product: f64 = (0..RANK).map(|k| b[nth * RANK + k] * a[k * n_inputs + input]).sum();
            (place, matrix.data[place] + SCALE * product)
        };
        (0..n_inputs).map(element).collect()
    };
    of_map.outputs.clone().enumerate().map(row).collect()
}

/// Squared norms are held in f32.
#[test]
fn a_model_with_magnitudes_is_the_merged_one() {
    for adapted in models() {
        let beside = adapted.adapted_loss().0;
        let merged = adapted.merged_loss(&adapted.weights, &adapted.norms(&adapted.weights));
        assert!((beside / merged - 1.0).abs() < 1e-6, "{beside} and {merged}");
        // The library merges in f32.
        let weights = adapted.params.iter().map(|param| {
            let values = adapted.weights[&param.name].data.iter().map(|x| *x as f32).collect();
            (param.clone(), values)
        });
        let whole = adapted.model.merged(&adapted.lora, weights.collect());
        assert_eq!(whole.len(), adapted.model.params(&Cut::whole(&adapted.model)).len());
        let upload = |(param, values): (Param, Vec<f32>)| {
            (param.name, Reference.upload(&param.shape, &values).expect("room"))
        };
        let whole: Named = whole.into_iter().map(upload).collect();
        let exported = adapted.loss(Cut::whole(&adapted.model), &whole).0;
        assert!((exported / merged - 1.0).abs() < 1e-6, "{exported} and {merged}");
        assert_ne!(adapted.loss(Cut::whole(&adapted.model), &adapted.weights).0, merged);
    }
}

#[test]
fn gradients_are_those_of_the_merged_model_with_held_norms() {
    for adapted in models() {
        let (_, gradients) = adapted.adapted_loss();
        let norms = adapted.norms(&adapted.weights);
        let mut n_checked = 0;
        for param in adapted.params.iter().filter(|param| Lora::is_adapter(&param.name)) {
            let gradient = &gradients[&param.name].data;
            let most = gradient.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            assert!(most > 1e-6, "{} has a gradient", param.name);
            for place in [0, gradient.len() / 2, gradient.len() - 1] {
                let at = |by: f64| {
                    let mut moved = adapted.weights.clone();
                    moved.get_mut(&param.name).expect("an adapter").data[place] += by;
                    adapted.merged_loss(&moved, &norms)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                let off = (gradient[place] - slope).abs();
                assert!(off < 1e-5 * most, "{} at {place}: {off:e} off", param.name);
                n_checked += 1;
            }
        }
        assert!(n_checked >= 18);
        let frozen = adapted.params.iter().filter(|param| !Lora::is_adapter(&param.name));
        assert!(frozen.clone().all(|param| param.frozen && gradients[&param.name].data.is_empty()));
    }
}

/// Magnitudes begin with the norms of the weights, so that nothing changes at the start.
#[test]
fn magnitudes_change_nothing_at_the_start() {
    for adapted in models() {
        let values = |param: &Param| {
            let values = initial(param, 5);
            (param.name.clone(), Reference.upload(&param.shape, &values).expect("room"))
        };
        let weights: Named = adapted.params.iter().map(values).collect();
        let plain = adapted.loss(Cut::whole(&adapted.model), &weights).0;
        let begun = Adapted { weights, ..adapted }.adapted_loss().0;
        assert!((begun / plain - 1.0).abs() < 1e-6, "{begun} and {plain}");
    }
}

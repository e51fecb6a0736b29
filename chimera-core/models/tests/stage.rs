//! The conformance suite of stages. The models pass it. A toy with autograd passes it and trains
//! like one worker. A faulty toy breaks each of its laws, and the suite finds it.

use std::cell::RefCell;

use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{Device, Result};
use chimera_engine::stage::{
    Autograd, Data, Differentiable, Init, Micro, Output, Param, Stage, conformance, initial,
};
use chimera_models::model::{
    Architecture, BertStage, Cut, DecoderStage, Llama, Lora, ModelConfig, Partition, Tuning,
};

/// Returns a small model whose head is a matrix of its own.
fn small(architecture: Architecture) -> ModelConfig {
    ModelConfig {
        architecture,
        layers: 3,
        hidden: 8,
        heads: 2,
        context: 4,
        vocab: 11,
        tied: false,
        llama: None,
        end_of_text: None,
    }
}

#[test]
fn models_conform() {
    for layout in ["E3TH", "E2T|1TH", "E1T|1T|1TH", "E|3T|H"] {
        let layout: Partition = layout.parse().expect("a partition");
        let cuts = |model: &ModelConfig| layout.cuts(model, layout.blocks().len()).expect("cuts");
        for tied in [false, true] {
            let config = |architecture| ModelConfig { tied, ..small(architecture) };
            let gpt2 = config(Architecture::GPT2);
            let stage = |cut: Cut| DecoderStage::new(Reference, &gpt2, 4, cut).expect("a stage");
            let stages = || cuts(&gpt2).into_iter().map(stage).collect();
            conformance::all(&Reference, stages, &Ids { is_bert: false });
            let choices =
                Llama { kv_heads: 1, head_dim: Some(6), window: Some(3), ..Llama::usual(8, 2) };
            let llama = ModelConfig { llama: Some(choices), ..config(Architecture::LLAMA) };
            let stage = |cut: Cut| DecoderStage::new(Reference, &llama, 4, cut).expect("a stage");
            let stages = || cuts(&llama).into_iter().map(stage).collect();
            conformance::all(&Reference, stages, &Ids { is_bert: false });
            let bert = config(Architecture::BERT);
            let stage = |cut: Cut| BertStage::new(Reference, &bert, 4, 1, cut).expect("a stage");
            let stages = || cuts(&bert).into_iter().map(stage).collect();
            conformance::all(&Reference, stages, &Ids { is_bert: true });
        }
    }
}

/// Stages with frozen tensors of every kind, and with adapters.
#[test]
fn tuned_models_conform() {
    let frozen = |patterns: &str| Tuning {
        freeze: patterns.parse().expect("patterns"),
        ..Tuning::default()
    };
    let with_dropout = |alpha, targets: &str, dropout| {
        let targets = targets.parse().unwrap_or_default();
        let lora = Lora { rank: 2, alpha, targets, dropout, has_magnitudes: false };
        Tuning { lora: Some(lora), ..Tuning::default() }
    };
    let adapted = |alpha, targets| with_dropout(alpha, targets, 0.0);
    let gpt2 = small(Architecture::GPT2);
    let choices = Llama { kv_heads: 1, qkv_bias: true, ..Llama::usual(8, 2) };
    let llama = ModelConfig { llama: Some(choices), ..small(Architecture::LLAMA) };
    for (model, tuning) in [
        (&gpt2, frozen("wte.*; wpe.*; h.0.*; h.1.ln_1.*")),
        (&gpt2, frozen("wte.*; *.weight")),
        (&gpt2, frozen("*.bias; wpe.*")),
        (&gpt2, adapted(2, "")),
        (&gpt2, adapted(3, "c_attn; mlp.c_proj")),
        (&llama, frozen("embed_tokens.*; layers.0.*; *norm.weight")),
        (&llama, adapted(4, "")),
        (&llama, adapted(2, "k_proj; up_proj")),
        (&gpt2, with_dropout(2, "", 0.4)),
        (&llama, with_dropout(3, "q_proj; v_proj; down_proj", 0.4)),
    ] {
        for layout in ["E3TH", "E1T|2TH", "E|3T|H"] {
            let layout: Partition = layout.parse().expect("a partition");
            let cuts = layout.cuts(model, layout.blocks().len()).expect("cuts");
            let stage = |cut: &Cut| {
                let cut = Cut { tuning: tuning.clone(), ..cut.clone() };
                DecoderStage::new(Reference, model, 4, cut).expect("a stage")
            };
            let stages = || cuts.iter().map(stage).collect();
            conformance::all(&Reference, stages, &Ids { is_bert: false });
        }
    }
}

/// A model with its adapters merged computes the same.
#[test]
fn merged_adapters_compute_the_same() {
    let llama = Llama { kv_heads: 1, ..Llama::usual(8, 2) };
    for (architecture, llama) in [(Architecture::GPT2, None), (Architecture::LLAMA, Some(llama))] {
        let model = ModelConfig { layers: 2, llama, ..small(architecture) };
        let targets = "q_proj; v_proj; gate_proj; down_proj; c_attn; mlp.c_fc".parse();
        let (targets, dropout) = (targets.expect("patterns"), 0.0);
        let lora = Lora { rank: 2, alpha: 3, targets, dropout, has_magnitudes: false };
        let tuning = Tuning { lora: Some(lora.clone()), ..Tuning::default() };
        let adapted = Cut { tuning, ..Cut::whole(&model) };
        let drawn = |param: Param| {
            let noisy = Param { init: Init::Normal(0.3), ..param.clone() };
            (param, initial(&noisy, 5))
        };
        let weights: Vec<_> = model.params(&adapted).into_iter().map(drawn).collect();
        assert!(weights.iter().any(|(param, _)| !param.frozen));
        let logits = |cut: Cut, weights: &[(Param, Vec<f32>)]| {
            let upload = |(param, values): &(Param, Vec<f32>)| {
                Reference.upload(&param.shape, values).expect("room")
            };
            let w: Vec<_> = weights.iter().map(upload).collect();
            let stage = DecoderStage::new(Reference, &model, 4, cut).expect("a stage");
            let micro = Micro {
                step: 0,
                sample: 0,
                input: &[1, 5, 9, 2],
                target: &[],
                loss_scale: 1.0,
                training: false,
            };
            match stage.forward(&w, &micro, None).expect("runs").0 {
                Output::Activation(y) => y.data,
                Output::Loss { .. } => panic!("there are no targets"),
            }
        };
        let beside = logits(adapted, &weights);
        let merged = model.merged(&lora, weights.clone());
        assert_eq!(merged.len(), model.params(&Cut::whole(&model)).len());
        let merged = logits(Cut::whole(&model), &merged);
        let worst = beside.iter().zip(&merged).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-5, "{worst:e} off in {architecture}");
        let base: Vec<_> =
            weights.into_iter().filter(|(param, _)| !Lora::is_adapter(&param.name)).collect();
        assert_ne!(logits(Cut::whole(&model), &base), merged);
    }
}

/// Token ids that depend on their position. A sample of BERT begins with its length, second segment
/// and predicted position.
struct Ids {
    is_bert: bool,
}

impl Data for Ids {
    fn sample(
        &self,
        _: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let ids = |from: u64| (from..from + 4).map(|i| (i * i + 3 * i + 1) as u32 % 11);
        if self.is_bert {
            input.extend([4 - sample as u32 % 2, 2, 1]);
            target.extend([ids(sample).next().unwrap_or_default(), sample as u32 % 2]);
        } else {
            target.extend(ids(4 * sample + 1));
        }
        input.extend(ids(4 * sample));
        Ok(())
    }

    fn n_targets(&self) -> usize {
        if self.is_bert { 1 } else { 4 }
    }

    fn target_len(&self) -> usize {
        if self.is_bert { 2 } else { 4 }
    }
}

/// The mistake of a toy stage.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    HalvesItsGradient,
    StretchesItsGradient,
    KeepsWeights,
    Counts,
    MixesSamples,
    IgnoresItsLossScale,
    MisshapesItsGradient,
    LeavesAGradientOut,
    MisshapesItsInputGradient,
}

/// `tanh(x w)` on rows of two numbers; the last layer also has a squared error. A curved layer has
/// `sin(2.5 x w)`.
struct Layer {
    params: [Param; 1],
    is_first: bool,
    is_last: bool,
    is_curved: bool,
    wrong: Wrong,
    kept: RefCell<Option<Tensor>>,
    n_calls: RefCell<f64>,
}

const GAIN: f64 = 2.5;

/// Inputs, weights and outputs, and the gradient of the loss in the last layer.
type Graph = (Tensor, Tensor, Tensor, Option<Tensor>);

fn layers(n: usize, wrong: Wrong) -> Vec<Autograd<Layer, Reference>> {
    layers_of(n, false, wrong)
}

fn layers_of(n: usize, is_curved: bool, wrong: Wrong) -> Vec<Autograd<Layer, Reference>> {
    let layer = |i: usize| Layer {
        params: [Param::new(format!("layer.{i}"), [2, 2], Init::Uniform(1.0))],
        is_first: i == 0,
        is_last: i + 1 == n,
        is_curved,
        wrong,
        kept: RefCell::new(None),
        n_calls: RefCell::new(0.0),
    };
    (0..n).map(|i| Autograd::new(layer(i), Reference)).collect()
}

fn tensor(shape: &[usize], data: Vec<f64>) -> Tensor {
    Tensor { shape: shape.to_vec(), data }
}

/// `a b` for rows of two numbers, with `b` as it is or transposed.
fn product(a: &Tensor, b: &Tensor, is_transposed: bool) -> Tensor {
    let at = |i: usize, j: usize| if is_transposed { b.data[2 * j + i] } else { b.data[2 * i + j] };
    let row = |row: &[f64]| [0, 1].map(|j| row[0] * at(0, j) + row[1] * at(1, j));
    tensor(&a.shape, a.data.chunks(2).flat_map(row).collect())
}

impl Differentiable for Layer {
    type Tensor = Tensor;
    type Item = f64;
    type Graph = Graph;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, f64>,
        x: Option<Tensor>,
    ) -> Result<(Output<Tensor>, Graph)> {
        let rows = micro.input.len() / 2;
        let x = x.unwrap_or_else(|| tensor(&[rows, 2], micro.input.to_vec()));
        assert_eq!(self.is_first, x.data == micro.input);
        let mut kept = self.kept.borrow_mut();
        let w = match self.wrong {
            Wrong::KeepsWeights => kept.get_or_insert_with(|| w[0].clone()).clone(),
            _ => w[0].clone(),
        };
        let mut y = product(&x, &w, false);
        y.data
            .iter_mut()
            .for_each(|y| *y = if self.is_curved { (GAIN * *y).sin() } else { y.tanh() });
        *self.n_calls.borrow_mut() += 1.0;
        match self.wrong {
            Wrong::Counts => y.data[0] += 0.1 * *self.n_calls.borrow(),
            Wrong::MixesSamples => y.data[0] += 0.1 * rows as f64,
            _ => {}
        }
        if !self.is_last || micro.target.is_empty() {
            return Ok((Output::Activation(y.clone()), (x, w, y, None)));
        }
        let scale = match self.wrong {
            Wrong::IgnoresItsLossScale => 1.0,
            _ => micro.loss_scale,
        };
        let errors: Vec<f64> = y.data.iter().zip(micro.target).map(|(y, t)| y - t).collect();
        let loss = scale * errors.iter().map(|e| e * e).sum::<f64>();
        let grad = errors.iter().map(|e| 2.0 * scale * e).collect();
        let of_loss = tensor(&y.shape, grad);
        let output = Output::Loss { loss: tensor(&[1], vec![loss]), grad: tensor(&[1], vec![1.0]) };
        Ok((output, (x, w, y, Some(of_loss))))
    }

    fn vjp(&self, graph: Graph, dy: Tensor) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        let (x, w, y, of_loss) = graph;
        let mut dz = of_loss.unwrap_or(dy);
        let slopes: Vec<f64> = if self.is_curved {
            product(&x, &w, false).data.iter().map(|z| GAIN * (GAIN * z).cos()).collect()
        } else {
            y.data.iter().map(|y| 1.0 - y * y).collect()
        };
        dz.data.iter_mut().zip(&slopes).for_each(|(dy, slope)| *dy *= slope);
        let mut dw = vec![0.0; 4];
        for (x, dz) in x.data.chunks(2).zip(dz.data.chunks(2)) {
            (0..4).for_each(|i| dw[i] += x[i / 2] * dz[i % 2]);
        }
        if self.wrong == Wrong::HalvesItsGradient {
            dw.iter_mut().for_each(|g| *g /= 2.0);
        }
        if self.wrong == Wrong::StretchesItsGradient {
            dw.iter_mut().for_each(|g| *g *= 1.05);
        }
        let mut dx = (!self.is_first).then(|| product(&dz, &w, true));
        if let (Wrong::MisshapesItsInputGradient, Some(dx)) = (self.wrong, &mut dx) {
            dx.shape = vec![dx.data.len()];
        }
        let gradients = match self.wrong {
            Wrong::MisshapesItsGradient => vec![tensor(&[4], dw)],
            Wrong::LeavesAGradientOut => Vec::new(),
            _ => vec![tensor(&[2, 2], dw)],
        };
        Ok((dx, gradients))
    }
}

/// Points on a curve.
struct Curve;

impl Data<f64> for Curve {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<f64>,
        target: &mut Vec<f64>,
    ) -> std::io::Result<()> {
        let at = (7 * step + sample) as f64;
        input.extend([at.sin(), at.cos()]);
        target.extend([(0.7 * at).sin(), 0.3]);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        2
    }
}

#[test]
fn a_stage_of_autograd_conforms() {
    for n in 1..=3 {
        conformance::all(&Reference, || layers(n, Wrong::Nothing), &Curve);
    }
    let boxed = || -> Vec<Box<dyn Stage<Tensor = Tensor, Item = f64, Saved = Graph, Deferred = Vec<Tensor>>>> {
        layers(2, Wrong::Nothing).into_iter().map(|stage| Box::new(stage) as _).collect()
    };
    conformance::all(&Reference, boxed, &Curve);
}

/// The loss of a deep model is too curved for a long step.
#[test]
fn a_deep_stage_conforms() {
    for n in [8, 12, 16] {
        conformance::all(&Reference, || layers_of(n, true, Wrong::Nothing), &Curve);
    }
}

#[test]
fn a_slightly_wrong_gradient_of_a_deep_stage_is_found() {
    for n in [8, 12, 16] {
        let wrong = || layers_of(n, true, Wrong::StretchesItsGradient);
        let found = std::panic::catch_unwind(|| conformance::all(&Reference, wrong, &Curve));
        let message = found.expect_err("a gradient that is 5 % too long");
        let message = message.downcast::<String>().expect("a message");
        assert!(message.contains("along a direction whose gradient is"), "{message}");
        assert!(message.contains("in steps of 1e-"), "{message}");
    }
}

macro_rules! found {
    ($($test:ident, $wrong:ident, $message:literal;)*) => {$(
        #[test]
        #[should_panic(expected = $message)]
        fn $test() {
            conformance::all(&Reference, || layers(2, Wrong::$wrong), &Curve);
        }
    )*};
}

found! {
    a_wrong_gradient_is_found, HalvesItsGradient, "along a direction whose gradient is";
    a_kept_weight_is_found, KeepsWeights, "the loss changes by";
    a_counter_is_found, Counts, "a forward pass run twice gives two losses";
    a_gradient_of_another_shape_is_found, MisshapesItsGradient, "a gradient of shape [4] for the parameter `layer.";
    a_gradient_that_is_left_out_is_found, LeavesAGradientOut, "gave 0 gradient(s) of weights";
    an_input_gradient_of_another_shape_is_found, MisshapesItsInputGradient, "the gradient of an input of stage 1";
    an_ignored_loss_scale_is_found, IgnoresItsLossScale, "a stage multiplies its summed loss by Micro::loss_scale";
    mixed_samples_are_found, MixesSamples, "losses of parts are";
}

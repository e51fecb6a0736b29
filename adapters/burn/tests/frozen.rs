//! Modules with frozen parts, and modules that keep state besides their parameters.

use std::collections::BTreeMap;
use std::sync::Mutex;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Tensor};
use chimera_burn::{Array, Burn, Piece, Ran, stage};
use chimera_core::device::Device as _;
use chimera_core::prelude::*;
use chimera_core::stage::{Init, conformance, samples};

const WIDTH: usize = 4;

/// The model, or a stage of it, which has some of the layers.
#[derive(Module, Debug)]
struct Net {
    first: Option<Linear>,
    norm: Option<BatchNorm>,
    last: Option<Linear>,
}

impl Net {
    fn new(change: fn(Linear) -> Linear) -> Net {
        let device = Device::flex();
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(&device);
        Net { first: Some(change(linear())), norm: None, last: Some(linear()) }
    }

    fn with_norm(change: fn(BatchNorm) -> BatchNorm) -> Net {
        let norm = BatchNormConfig::new(WIDTH).init(&Device::flex());
        Net { norm: Some(change(norm)), ..Net::new(|linear| linear) }
    }

    /// One of two stages.
    fn stage(&self, index: usize) -> Net {
        match index {
            0 => Net { last: None, ..self.clone() },
            _ => Net { first: None, norm: None, ..self.clone() },
        }
    }
}

impl Piece for Net {
    type Item = f32;

    fn run(&self, burn: &Burn, micro: &Micro<'_, f32>, x: Option<&Array>) -> Ran {
        let rows = |numbers: &[f32]| burn.tensor(numbers, [numbers.len() / WIDTH, WIDTH]);
        let mut x: Tensor<2> = x.map_or_else(|| rows(micro.input), Array::tensor);
        if let Some(first) = &self.first {
            x = first.forward(x).tanh();
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        if let Some(last) = &self.last {
            x = last.forward(x);
        }
        if micro.target.is_empty() {
            return Ran::Activation(x.into());
        }
        let errors = x - rows(micro.target);
        Ran::Loss((errors.clone() * errors).sum() * micro.loss_scale)
    }
}

fn data() -> impl Data<f32> {
    samples(WIDTH, |step, n, x: &mut Vec<f32>, y: &mut Vec<f32>| {
        x.extend((0..WIDTH).map(|i| ((7 * step + n) as f32 + i as f32).sin()));
        y.extend([0.1, 0.2, -0.3, 0.4]);
    })
}

fn in_f32() -> Burn {
    Burn::new(Device::flex(), FloatDType::F32)
}

/// Trains some steps. Returns for each tensor, by name, true if it differs from the module's.
fn changes(net: &Net) -> BTreeMap<String, bool> {
    let timetable = find("1f1b").expect("known").timetable(&Shape::new(2, 4)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let (data, parts) = (data(), Mutex::new([0, 1].map(|index| net.stage(index))));
    let training = Training { steps: 5, lr: 0.05, ..Training::default() };
    let trainer = Trainer::new(&program, &data).training(training).micro_batch_size(4);
    let trained = trainer.on_threads(
        |_| Ok(in_f32()),
        |burn, id| Ok(stage(burn, parts.lock().expect("sound")[id.index()].clone())?),
    );
    let trained = trained.expect("trained");
    let whole = stage(&in_f32(), net.clone()).expect("a stage");
    assert_eq!(trained.weights.len(), whole.params().len(), "all are saved");
    let changed = |param: &Param| {
        let Init::Values(values) = &param.init else { panic!("burn gives values") };
        let now = in_f32().download(&trained.weights[&param.name]).expect("numbers");
        (param.name.clone(), now != values[..])
    };
    whole.params().iter().map(changed).collect()
}

#[test]
fn what_is_frozen_stays_and_all_else_is_trained() {
    for change in [Module::no_grad, Module::freeze] {
        let changed = changes(&Net::new(change));
        let frozen = ["first.weight", "first.bias"];
        for (name, is_changed) in &changed {
            assert_eq!(*is_changed, !frozen.contains(&name.as_str()), "{name}");
        }
        assert_eq!(changed.len(), 4);
    }
    assert!(changes(&Net::new(|linear| linear)).values().all(|is_changed| *is_changed));
}

#[test]
fn a_frozen_piece_is_a_stage() {
    let (burn, net) = (in_f32(), Net::new(Module::no_grad));
    let made = || [0, 1].map(|index| stage(&burn, net.stage(index)).expect("a stage")).into();
    conformance::all(&burn, made, &data());
}

#[test]
fn batch_norm_is_refused_unless_it_is_frozen() {
    let refusal = stage(&in_f32(), Net::with_norm(|norm| norm)).expect_err("refused").to_string();
    assert!(refusal.starts_with("`norm.running_mean` is updated in every forward"), "{refusal}");
    let changed = changes(&Net::with_norm(Module::freeze));
    assert!(changed.iter().all(|(name, is_changed)| *is_changed != name.starts_with("norm.")));
    assert_eq!(changed.len(), 8);
}

//! Burn's modules under pipeline schedules, compared with plain burn on one worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor};
use chimera_burn::{Array, Burn, Piece, Ran, stage};
use chimera_core::costs::UniformCosts;
use chimera_core::device::Device as _;
use chimera_core::engine::{LrSchedule, Training};
use chimera_core::lower::{Lowering, Passes, Recompute, lower};
use chimera_core::schedule::{Scaling, Shape, find};
use chimera_core::stage::{Data, Micro, conformance, samples};
use chimera_core::trainer::Trainer;

const WIDTH: usize = 4;
const LENGTH: usize = 3;
const BLOCKS: usize = 8;
/// Micro-batches per step, and samples per micro-batch.
const N: u32 = 8;
const B: usize = 2;

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

/// The model, or a stage of it, which has some of the blocks.
#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Option<Block>>,
}

/// The whole model, with random weights.
static MODEL: LazyLock<Model> = LazyLock::new(|| {
    Device::flex().seed(1);
    let model = Model::new(&Device::flex());
    weights(&model);
    model
});

impl Model {
    fn new(device: &Device) -> Model {
        let block = || Block {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 2 * WIDTH).init(device),
            down: LinearConfig::new(2 * WIDTH, WIDTH).with_bias(false).init(device),
        };
        Model { blocks: (0..BLOCKS).map(|_| Some(block())).collect() }
    }

    fn stage(&self, index: usize, n_stages: usize) -> Model {
        let mut model = self.clone();
        let own = index * BLOCKS / n_stages..(index + 1) * BLOCKS / n_stages;
        let others = model.blocks.iter_mut().enumerate().filter(|(index, _)| !own.contains(index));
        others.for_each(|(_, block)| *block = None);
        model
    }
}

impl Piece for Model {
    type Item = f32;

    fn run(&self, burn: &Burn, micro: &Micro<'_, f32>, x: Option<&Array>) -> Ran {
        let samples = |numbers: &[f32]| {
            burn.tensor(numbers, [numbers.len() / (LENGTH * WIDTH), LENGTH, WIDTH])
        };
        let mut x: Tensor<3> = x.map_or_else(|| samples(micro.input), Array::tensor);
        for block in self.blocks.iter().flatten() {
            let y = block.up.forward(block.norm.forward(x.clone())).tanh();
            x = x + block.down.forward(y);
        }
        if micro.target.is_empty() {
            return Ran::Activation(x.into());
        }
        let errors = x - samples(micro.target);
        Ran::Loss((errors.clone() * errors).sum() * micro.loss_scale)
    }
}

fn data() -> impl Data<f32> {
    samples(LENGTH * WIDTH, |step, sample, input, target| {
        let numbers = (0..LENGTH * WIDTH).map(|i| (step + 7 * sample) as f32 + 0.3 * i as f32);
        numbers.clone().for_each(|x| input.push(x.sin()));
        numbers.for_each(|x| target.push((2.0 * x).cos()));
    })
}

fn in_f64() -> Burn {
    Burn::new(Device::flex(), FloatDType::F64)
}

fn training() -> Training {
    Training { steps: 10, lr: 0.01, lr_schedule: LrSchedule::Constant, ..Training::default() }
}

/// Converts parameters from f32 to f64, and everything made of them.
struct InF64;

impl ModuleMapper for InF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(DType::F64).autodiff().require_grad())
    }
}

/// A step of AdamW.
struct AdamW {
    step: i32,
    gradients: Gradients,
    moments: HashMap<ParamId, [Array; 2]>,
}

impl ModuleMapper for AdamW {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Training { lr, beta1, beta2, eps, .. } = training();
        let g = param.val().grad(&self.gradients).expect("a gradient");
        let zeros = || [g.zeros_like().into(), g.zeros_like().into()];
        let [m, v] = self.moments.entry(param.id).or_insert_with(zeros);
        *m = (m.tensor::<D>() * beta1 + g.clone() * (1.0 - beta1)).into();
        *v = (v.tensor::<D>() * beta2 + g.clone() * g * (1.0 - beta2)).into();
        let m_hat = m.tensor::<D>() / (1.0 - beta1.powi(self.step));
        let v_hat = v.tensor::<D>() / (1.0 - beta2.powi(self.step));
        let update = m_hat / (v_hat.sqrt() + eps) * lr;
        param.map(|weight| (weight.without_autodiff() - update).autodiff().require_grad())
    }
}

type Weights = BTreeMap<String, Vec<f64>>;

/// Runs ten steps of AdamW in plain burn, on the whole global batch at once. Returns weights by
/// name.
fn plain(model: &Model) -> Weights {
    let (mut model, mut moments) = (model.clone().map(&mut InF64), HashMap::new());
    for step in 0..training().steps {
        let (mut input, mut target) = (Vec::new(), Vec::new());
        for sample in 0..u64::from(N) * B as u64 {
            data().sample(step, sample, &mut input, &mut target).expect("a sample");
        }
        let loss_scale = 1.0 / input.len() as f64;
        let micro =
            Micro { step, sample: 0, input: &input, target: &target, loss_scale, training: true };
        let Ran::Loss(loss) = model.run(&in_f64(), &micro, None) else {
            panic!("the whole model has a loss")
        };
        let mut by = AdamW { step: step as i32 + 1, gradients: loss.backward(), moments };
        model = model.map(&mut by);
        moments = by.moments;
    }
    weights(&model)
}

/// The tensors of a module by their paths.
fn weights(model: &Model) -> Weights {
    #[derive(Default)]
    struct Found(Vec<String>, Weights);

    impl ModuleVisitor for Found {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.into());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().without_autodiff().try_to_vec_as().expect("numbers");
            self.1.insert(self.0.join("."), values);
        }
    }

    let mut found = Found::default();
    model.visit(&mut found);
    found.1
}

/// Runs the steps of `plain` with a schedule.
fn piped(model: &Model, name: &str, shape: &Shape, passes: &Passes) -> Weights {
    let timetable = find(name).expect("a schedule").timetable(shape);
    let timetable = timetable.unwrap_or_else(|e| panic!("{name}: {e}"));
    let how = Lowering { barrier: training().needs_barrier(), ..Lowering::default() };
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    let timetable = passes.apply(timetable, &how, &costs).expect("sound");
    let program = lower(&timetable, &how).expect("proven");
    let (n_stages, data) = (program.placement().n_stages(), data());
    let trainer = Trainer::new(&program, &data).training(training()).micro_batch_size(B);
    let trained = trainer.on_threads(
        |_| Ok(in_f64()),
        |burn, id| Ok(stage(burn, model.stage(id.index(), n_stages))?),
    );
    let trained = trained.unwrap_or_else(|fault| panic!("{name}: {fault}"));
    let burn = in_f64();
    let values = |x: &Array| {
        let elements = burn.download_all(&[x]).expect("numbers").swap_remove(0);
        elements.to_f64(x.shape().iter().product())
    };
    trained.weights.iter().map(|(name, x)| (name.clone(), values(x))).collect()
}

#[test]
fn every_way_to_pipeline_it_trains_it_as_plain_burn() {
    let plain = plain(&MODEL);
    let none = Passes::default();
    let full = Passes { recompute: Recompute::Full, ..none };
    let split = Passes { split_backward: true, ..none };
    let shape = Shape::new(4, N);
    let scaled = |scaling| Shape { scaling, ..shape };
    for (name, shape, passes) in [
        ("gpipe", Shape::new(1, N), none),
        ("1f1b", shape, none),
        ("1f1b", shape, split),
        ("chimera", shape, none),
        ("chimera", shape, full),
        ("chimera", Shape { n_pipes: 4, ..shape }, none),
        ("chimera", scaled(Scaling::Doubling), none),
        ("chimera", scaled(Scaling::Halving), none),
        ("zb-v", shape, none),
    ] {
        let piped = piped(&MODEL, name, &shape, &passes);
        assert!(piped.keys().eq(plain.keys()), "{name}: {:?}", piped.keys());
        for (tensor, wanted) in &plain {
            let apart = piped[tensor].iter().zip(wanted).map(|(a, b)| (a - b).abs());
            let apart = apart.fold(0.0, f64::max);
            assert!(apart < 1e-12, "{name} {passes:?}: {tensor} differs by {apart}");
        }
    }
}

#[test]
fn burn_is_a_device() {
    for (dtype, tolerance) in [(FloatDType::F64, 1e-12), (FloatDType::F32, 1e-5)] {
        chimera_core::device::conformance::run(&Burn::new(Device::flex(), dtype), tolerance);
    }
}

#[test]
fn a_piece_is_a_stage() {
    let burn = in_f64();
    let made = || (0..2).map(|id| stage(&burn, MODEL.stage(id, 2)).expect("a stage")).collect();
    conformance::all(&burn, made, &data());
}

//! Every way to pipeline the model trains it like plain candle on one worker.

use std::collections::{BTreeMap, HashMap};

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::VarBuilder;
use chimera_candle::{Candle, Piece, Ran, stage};
use chimera_core::costs::UniformCosts;
use chimera_core::engine::{LrSchedule, Training};
use chimera_core::lower::{Lowering, Passes, Recompute, lower};
use chimera_core::schedule::{Scaling, Shape, find};
use chimera_core::stage::{Data, Micro, Stage, initial};
use chimera_core::trainer::Trainer;

use super::llama::{Ids, LAYERS, Llama, SEQUENCE};

/// Micro-batches per step, and samples per micro-batch.
const N: u32 = 8;
const B: usize = 2;

fn training() -> Training {
    Training {
        steps: 10,
        lr: 0.001,
        warmup: 0,
        lr_schedule: LrSchedule::Constant,
        ..Training::default()
    }
}

/// Runs ten steps of AdamW in plain candle, on the whole global batch at once.
fn plain() -> Result<BTreeMap<String, Tensor>> {
    let (whole, training) = (Llama { layers: 0..LAYERS }, training());
    let params = stage(&Candle::cpu(DType::F64), Llama { layers: 0..LAYERS })?.params().to_vec();
    let first = |param: &chimera_core::stage::Param| {
        let values = initial(param, training.seed);
        let tensor = Tensor::from_vec(values, param.shape.as_slice(), &Device::Cpu)?;
        Ok((param.name.clone(), Var::from_tensor(&tensor.to_dtype(DType::F64)?)?))
    };
    let vars: HashMap<String, Var> = params.iter().map(first).collect::<Result<_>>()?;
    let mut moments: HashMap<String, [Tensor; 2]> = HashMap::new();
    for step in 0..training.steps {
        let (mut input, mut target) = (Vec::new(), Vec::new());
        for sample in 0..u64::from(N) * B as u64 {
            Ids.sample(step, sample, &mut input, &mut target).expect("a sample");
        }
        let loss_scale = 1.0 / (N as usize * B * SEQUENCE) as f64;
        let micro =
            Micro { step, sample: 0, input: &input, target: &target, loss_scale, training: true };
        let tensors = vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone()));
        let vb = VarBuilder::from_tensors(tensors.collect(), DType::F64, &Device::Cpu);
        let Ran::Loss(loss) = whole.forward(&whole.build(vb)?, &micro, None)? else {
            panic!("the whole model has a loss")
        };
        let gradients = loss.backward()?;
        let of = |var: &Var| gradients.get(var).expect("a gradient");
        let squares = vars.values().map(|var| of(var).sqr()?.sum_all()?.to_scalar::<f64>());
        let norm = squares.sum::<Result<f64>>()?.sqrt();
        let scale = training.clip.map_or(1.0, |clip| (clip / norm).min(1.0));
        for param in &params {
            let var = &vars[&param.name];
            let g = (of(var) * scale)?;
            let zeros = || [var.zeros_like().expect("zeros"), var.zeros_like().expect("zeros")];
            let [m, v] = moments.entry(param.name.clone()).or_insert_with(zeros);
            *m = ((&*m * training.beta1)? + (&g * (1.0 - training.beta1))?)?;
            *v = ((&*v * training.beta2)? + (g.sqr()? * (1.0 - training.beta2))?)?;
            let t = (step + 1) as i32;
            let m_hat = (&*m / (1.0 - training.beta1.powi(t)))?;
            let v_hat = (&*v / (1.0 - training.beta2.powi(t)))?;
            let decay = if param.decay { training.lr * training.weight_decay } else { 0.0 };
            let step = ((m_hat / (v_hat.sqrt()? + training.eps)?)? * training.lr)?;
            var.set(&((var.as_tensor() * (1.0 - decay))? - step)?)?;
        }
    }
    Ok(vars.into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect())
}

/// Runs the steps of `plain` with a schedule.
fn piped(name: &str, shape: Shape, passes: Passes, width: usize) -> BTreeMap<String, Tensor> {
    let n_micro_batches = shape.n_micro_batches / width as u32;
    let timetable = find(name).expect("a schedule").timetable(&Shape { n_micro_batches, ..shape });
    let timetable = timetable.unwrap_or_else(|e| panic!("{name}: {e}"));
    let how = Lowering { barrier: training().needs_barrier(), ..Lowering::default() };
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    let timetable = passes.apply(timetable, &how, &costs).expect("sound");
    let program = lower(&timetable, &how).expect("proven");
    let n_stages = program.placement().n_stages();
    let trainer =
        Trainer::new(&program, &Ids).training(training()).micro_batch_size(B).width(width);
    let trained = trainer.on_threads(
        |_| Ok(Candle::cpu(DType::F64)),
        |candle, id| Ok(stage(candle, Llama::of_stage(id.index(), n_stages)).expect("a stage")),
    );
    trained.unwrap_or_else(|fault| panic!("{name}: {fault}")).weights
}

#[test]
fn every_way_to_pipeline_it_trains_it_as_plain_candle() {
    let plain = plain().expect("trained");
    let none = Passes::default();
    let full = Passes { recompute: Recompute::Full, ..none };
    let split = Passes { split_backward: true, ..none };
    let shape = Shape::new(4, N);
    let scaled = |scaling| Shape { scaling, ..shape };
    for (name, shape, passes, width) in [
        ("gpipe", Shape::new(1, N), none, 1),
        ("1f1b", shape, none, 2),
        ("chimera", shape, none, 1),
        ("chimera", Shape { n_pipes: 4, ..shape }, none, 1),
        ("chimera", scaled(Scaling::Doubling), none, 1),
        ("chimera", scaled(Scaling::Halving), none, 1),
        ("chimera", shape, full, 1),
        ("chimera", shape, split, 1),
        ("dualpipe", shape, none, 1),
        ("zb-v", shape, none, 1),
    ] {
        let piped = piped(name, shape, passes, width);
        assert_eq!(piped.len(), plain.len());
        for (tensor, wanted) in &plain {
            let apart = (&piped[tensor] - wanted).and_then(|d| d.abs()?.flatten_all()?.max(0));
            let apart: f64 = apart.and_then(|d| d.to_scalar()).expect("a number");
            assert!(apart < 1e-12, "{name} {passes:?} {width}: {tensor} differs by {apart}");
        }
    }
}

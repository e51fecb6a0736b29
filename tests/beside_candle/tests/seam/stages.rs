//! Stages of candle modules that candle differentiates, on GPUs.

use candle_core::{DType, Device, Tensor};
use candle_nn::{linear, seq};
use chimera_candle::{Candle, regression};
use chimera_core::device::{DeviceError, Result};
use chimera_core::prelude::*;
use chimera_core::stage::samples;

const STEPS: u64 = 5;

#[test]
#[ignore = "it takes an emulated GPU: candle_trains_its_modules_on_gpus starts it on one"]
fn train_on_one_gpu() {
    train_as_on_the_processor(|_| Candle::cuda(0, DType::F32));
}

#[test]
#[ignore = "it takes emulated GPUs: candle_trains_its_modules_on_gpus starts it on them"]
fn train_on_two_gpus() {
    train_as_on_the_processor(|rank| Candle::cuda(rank % 2, DType::F32));
}

#[test]
#[ignore = "it takes an emulated GPU: candle_trains_its_modules_on_gpus starts it on one"]
fn train_with_a_stream_per_thread() {
    train_as_on_the_processor(|_| {
        Ok(Candle::new(Device::new_cuda(0).map_err(DeviceError::other)?, DType::F32))
    });
}

fn train_as_on_the_processor(open: fn(usize) -> Result<Candle>) {
    let expected = train(|_| Ok(Candle::cpu(DType::F32)));
    let got = train(open);
    assert_eq!(got.len(), STEPS as usize);
    let is_near = |(got, expected): (&f64, &f64)| (got - expected).abs() < 1e-5 * expected;
    assert!(got.iter().zip(&expected).all(is_near), "{got:?} is not {expected:?}");
}

/// Losses of four layers under Chimera with two workers, each on the device that `open` gives it.
fn train(open: fn(usize) -> Result<Candle>) -> Vec<f64> {
    let chimera = find("chimera").expect("a schedule");
    let timetable = chimera.timetable(&Shape::new(2, 4)).expect("a shape");
    let program = lower(&timetable, &Lowering { barrier: true, ..Lowering::default() });
    let data = samples(3, |step, n, x: &mut Vec<f32>, y| {
        x.extend((0..3).map(|i| (0.3 * (step + 5 * n + i) as f32).sin()));
        y.extend([0.1, -0.1, 0.2]);
    });
    let training = Training { steps: STEPS, lr: 1e-2, ..Training::default() };
    let program = program.expect("proven");
    let trainer = Trainer::new(&program, &data).training(training).micro_batch_size(2);
    let trained = trainer.on_threads(
        |rank| open(rank.index()),
        |candle: &Candle, id: StageId| {
            let names = [0, 1].map(|n| format!("layer.{}", 2 * id.index() + n));
            regression(candle, 3, move |vb| {
                let layer = |n: usize| linear(3, 3, vb.pp(&names[n]));
                Ok(seq().add(layer(0)?).add_fn(Tensor::tanh).add(layer(1)?))
            })
        },
    );
    trained.expect("trained").reports.iter().map(|report| report.loss).collect()
}

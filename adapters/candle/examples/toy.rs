//! Four stages of candle modules under Chimera: the example of the README.

use candle_nn::{Activation, linear, seq};
use chimera_candle::{Candle, regression};
use chimera_core::prelude::*;
use chimera_core::stage::samples;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let timetable = find("chimera")?.timetable(&Shape::new(4, 8))?; // D = 4, N = 8
    let program = lower(&timetable, &Lowering { barrier: true, ..Lowering::default() })?;
    let data = samples(2, |_step, n, x: &mut Vec<f32>, y| {
        x.extend([(n as f32).sin(), (n as f32).cos()]);
        y.extend([0.5, (n as f32).sin().abs()]);
    });
    let stage = |candle: &Candle, id: StageId| {
        let name = format!("layer.{}", id.index());
        regression(candle, 2, move |vb| {
            Ok(seq().add(linear(2, 2, vb.pp(&name))?).add(Activation::Gelu))
        })
    };
    let training = Training { steps: 200, lr: 1e-2, ..Training::default() };
    let trainer = Trainer::new(&program, &data).training(training);
    let trained = trainer.on_threads(|_rank| Ok(Candle::cpu(candle_core::DType::F32)), stage)?;
    println!("loss {:.3}, then {:.3}", trained.reports[0].loss, trained.reports[199].loss);
    Ok(())
}

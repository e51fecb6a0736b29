//! Number formats with too few digits for a training are refused before it begins.

use candle_core::DType;
use chimera_candle::{Candle, stage};
use chimera_core::engine::Training;
use chimera_core::fault::{Class, Fault};
use chimera_core::lower::{Lowering, lower};
use chimera_core::schedule::{Shape, find};
use chimera_core::trainer::Trainer;

use super::llama::{Ids, Llama};

/// Trains with tensors of this type. Returns the fault that ends it, if any.
fn train(dtype: DType, training: Training) -> Result<(), Fault> {
    let timetable = find("1f1b").expect("known").timetable(&Shape::new(2, 2)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let trainer = Trainer::new(&program, &Ids).training(training);
    let trained = trainer.on_threads(
        |_| Ok(Candle::cpu(dtype)),
        |candle, id| Ok(stage(candle, Llama::of_stage(id.index(), 2)).expect("a stage")),
    );
    trained.map(|_| ())
}

#[test]
fn weights_of_half_precision_are_refused() {
    for dtype in [DType::BF16, DType::F16] {
        let fault = train(dtype, Training::default()).expect_err("refused");
        assert_eq!(fault.class, Class::Usage, "{fault}");
        let why = "rounds numbers to fewer digits than f32 has, which weights, norms and the optimizer's state need: \
                   choose tensors of f32 or f64";
        assert!(fault.message.contains(why), "{dtype:?}: {fault}");
    }
}

#[test]
fn gradients_go_in_bf16_from_tensors_of_f32_alone() {
    let training = Training { bf16_gradients: true, ..Training::default() };
    train(DType::F32, training.clone()).expect("trained");
    let fault = train(DType::F64, training).expect_err("refused");
    assert_eq!(fault.class, Class::Usage, "{fault}");
    let why = "gradients are only sent in bf16 from f32 devices, which ";
    assert!(fault.message.starts_with(why), "{fault}");
}

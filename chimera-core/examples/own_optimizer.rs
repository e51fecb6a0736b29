//! A custom optimizer, Lion (Chen et al., 2023): steps of constant length, by the sign of a mean of
//! gradients.

#[allow(dead_code)]
#[path = "own_stage.rs"]
mod own_stage;

use std::error::Error;

use chimera_core::device::Result;
use chimera_core::device::reference::Reference;
use chimera_core::engine::{Optimizer, ParamGroup, UpdateRule};
use chimera_core::prelude::*;
use own_stage::{Curve, bend};

struct Lion {
    beta1: f64,
    beta2: f64,
}

impl UpdateRule for Lion {
    fn name(&self) -> &str {
        "lion"
    }

    /// One tensor for each parameter: a mean of its gradients, which checkpoints keep.
    fn state(&self, _: &Param) -> &[&'static str] {
        &["m"]
    }

    fn update(&self, group: ParamGroup<'_>) -> Result<()> {
        let (lr, weight_decay) = (group.lr, group.weight_decay);
        group.on_host(|tensor| {
            let mean = tensor.state.into_iter().flatten();
            for ((w, g), m) in tensor.weights.iter_mut().zip(tensor.gradient).zip(mean) {
                let direction = (self.beta1 * *m + (1.0 - self.beta1) * g).signum();
                *w -= lr * (direction + weight_decay * *w);
                *m = self.beta2 * *m + (1.0 - self.beta2) * g;
            }
            Ok(())
        })
    }
}

pub(crate) fn main() -> std::result::Result<(), Box<dyn Error>> {
    let optimizer = Optimizer::new(Lion { beta1: 0.9, beta2: 0.99 });
    let training = Training { steps: 50, lr: 0.01, optimizer, ..Training::default() };
    let timetable = find("chimera")?.timetable(&Shape::new(4, 8))?;
    let program = lower(&timetable, &Lowering { barrier: true, ..Lowering::default() })?;
    let trainer = Trainer::new(&program, &Curve).training(training).micro_batch_size(2);
    let trained = trainer.on_threads(|_| Ok(Reference), |_, id| Ok(bend(id.index())))?;
    let [first, .., last] = &trained.reports[..] else { return Err("two steps at least".into()) };
    println!("loss {:.4} at first, {:.4} at last", first.loss, last.loss);
    assert!(last.loss < 0.5 * first.loss, "nothing is learnt");
    Ok(())
}

//! Custom stages, `y = tanh(w x)`: Chimera trains four of them on four workers.

use std::error::Error;

use chimera_core::device::Result;
use chimera_core::device::reference::{Reference, Tensor};
use chimera_core::prelude::*;

pub(crate) struct Bend(Vec<Param>);

/// Stage number `id`, which the engine differentiates by its `vjp`.
pub(crate) fn bend(id: usize) -> Autograd<Bend, Reference> {
    Autograd::new(Bend(vec![Param::new(format!("bend.{id}"), [1], Init::Ones)]), Reference)
}

impl Differentiable for Bend {
    type Tensor = Tensor;
    type Item = f64;
    /// Input, output and weight of a forward pass.
    type Graph = (Tensor, Tensor, f64);

    fn params(&self) -> &[Param] {
        &self.0
    }

    fn forward(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, f64>,
        x: Option<Tensor>,
    ) -> Result<(Output<Tensor>, Self::Graph)> {
        let (w, n) = (w[0].data[0], micro.input.len());
        let x = x.unwrap_or_else(|| Tensor::new(&[n], micro.input.to_vec()));
        let y = Tensor::new(&x.shape, x.data.iter().map(|x| (w * x).tanh()).collect());
        let graph = (x, y.clone(), w);
        if micro.target.is_empty() {
            return Ok((Output::Activation(y), graph));
        }
        let errors = y.data.iter().zip(micro.target).map(|(y, t)| y - t);
        let loss = micro.loss_scale * errors.clone().map(|e| e * e).sum::<f64>();
        let grad = errors.map(|e| 2.0 * micro.loss_scale * e).collect();
        let (loss, grad) = (Tensor::new(&[1], vec![loss]), Tensor::new(&y.shape, grad));
        Ok((Output::Loss { loss, grad }, graph))
    }

    fn vjp(&self, (x, y, w): Self::Graph, dy: Tensor) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        let slopes: Vec<f64> =
            dy.data.iter().zip(&y.data).map(|(dy, y)| dy * (1.0 - y * y)).collect();
        let dw = slopes.iter().zip(&x.data).map(|(slope, x)| slope * x).sum();
        let dx = slopes.iter().map(|slope| slope * w).collect();
        Ok((Some(Tensor::new(&x.shape, dx)), vec![Tensor::new(&[1], vec![dw])]))
    }
}

pub(crate) struct Curve;

impl Data<f64> for Curve {
    fn sample(&self, step: u64, n: u64, x: &mut Vec<f64>, y: &mut Vec<f64>) -> std::io::Result<()> {
        x.push((0.1 * (16 * step + n) as f64).sin());
        y.push(0.2 * x[x.len() - 1]);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        1
    }
}

pub(crate) fn main() -> std::result::Result<(), Box<dyn Error>> {
    let timetable = find("chimera")?.timetable(&Shape::new(4, 8))?; // four workers, eight micro-batches
    let program = lower(&timetable, &Lowering { barrier: true, ..Lowering::default() })?;
    let training = Training { steps: 50, lr: 0.05, ..Training::default() };
    let trainer = Trainer::new(&program, &Curve).training(training).micro_batch_size(2);
    let trained = trainer.on_threads(|_| Ok(Reference), |_, id| Ok(bend(id.index())))?;
    let [first, .., last] = &trained.reports[..] else { return Err("two steps at least".into()) };
    println!("loss {:.4} at first, {:.4} at last", first.loss, last.loss);
    assert!(last.loss < 0.5 * first.loss, "nothing is learnt");
    Ok(())
}

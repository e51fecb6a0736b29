//! Pieces that would silently train with wrong gradients, or lose their state, are refused. Similar
//! pieces that are correct train.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{BatchNorm, Linear, Module, ModuleT, VarBuilder, batch_norm, linear, ops};
use chimera_candle::{Candle, Piece, Ran, stage};
use chimera_core::prelude::*;
use chimera_core::stage::samples;

/// The layers that a stage may use.
struct Built {
    linear: Option<Linear>,
    norm: Option<BatchNorm>,
}

/// Computes a stage's output from its input. The last of two stages compares it with the targets.
type Run = fn(&Built, &Micro<'_, f32>, Tensor) -> Result<Tensor>;

/// One of two stages.
#[derive(Clone, Copy)]
struct Part {
    id: usize,
    run: Run,
    /// Names of its layers.
    layers: &'static [&'static str],
    loss: fn(Tensor, f64) -> Result<Tensor>,
}

impl Piece for Part {
    type Item = f32;
    type Module = Built;

    fn build(&self, vb: VarBuilder<'_>) -> Result<Built> {
        let (vb, has) = (vb.pp(self.id), |name| self.layers.contains(&name));
        let layer = |name| has(name).then(|| linear(4, 4, vb.pp(name))).transpose();
        let norm = has("norm").then(|| batch_norm(4, 1e-5, vb.pp("norm"))).transpose()?;
        layer("other")?; // unused
        Ok(Built { linear: layer("linear")?, norm })
    }

    fn forward(&self, built: &Built, micro: &Micro<'_, f32>, x: Option<&Tensor>) -> Result<Ran> {
        let rows =
            |numbers: &[f32]| Tensor::from_slice(numbers, (numbers.len() / 4, 4), &Device::Cpu);
        let y = (self.run)(built, micro, x.cloned().map_or_else(|| rows(micro.input), Ok)?)?;
        if micro.target.is_empty() {
            return Ok(Ran::Activation(y));
        }
        let errors = (y - rows(micro.target)?)?.sqr()?;
        Ok(Ran::Loss((self.loss)(errors, micro.loss_scale)?))
    }
}

fn layer(built: &Built, _: &Micro<'_, f32>, x: Tensor) -> Result<Tensor> {
    built.linear.as_ref().expect("a layer").forward(&x)
}

fn sum(errors: Tensor, scale: f64) -> Result<Tensor> {
    errors.sum_all()? * scale
}

/// A linear layer.
const PLAIN: Part = Part { id: 0, run: layer, layers: &["linear"], loss: sum };

/// Trains two stages.
fn train(first: Part, last: Part) -> std::result::Result<(), Fault> {
    let timetable = find("1f1b").expect("known").timetable(&Shape::new(2, 2)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let data = samples(4, |step, n, x: &mut Vec<f32>, y| {
        x.extend((0..4).map(|i| ((7 * step + n) as f32 + 0.3 * i as f32).sin()));
        y.extend([0.1, 0.2, -0.3, 0.4]);
    });
    let training = Training { steps: 2, ..Training::default() };
    let trainer = Trainer::new(&program, &data).training(training).micro_batch_size(2);
    let trained = trainer.on_threads(
        |_| Ok(Candle::cpu(DType::F32)),
        |candle, id| {
            let part = if id == StageId(0) { first } else { last };
            Ok(stage(candle, Part { id: id.index(), ..part }).map_err(|e| e.to_string())?)
        },
    );
    trained.map(drop)
}

#[track_caller]
fn is_refused(first: Part, last: Part, parts: &[&str]) {
    let fault = train(first, last).expect_err("refused");
    parts.iter().for_each(|part| assert!(fault.message.contains(part), "{part}: {fault}"));
}

#[test]
fn an_input_without_a_gradient_is_refused() {
    let lost = "no gradient comes back to the activation of the stage before";
    let norm: Run = |built, micro, x| {
        let scale = Tensor::ones(4, DType::F32, &Device::Cpu)?;
        let norm = candle_nn::LayerNorm::new(scale.clone(), scale.zeros_like()?, 1e-5);
        layer(built, micro, norm.forward(&x)?)
    };
    is_refused(PLAIN, Part { run: norm, ..PLAIN }, &[lost, "layer_norm_slow"]);
    let softmax: Run = |built, micro, x| layer(built, micro, ops::softmax_last_dim(&x)?);
    is_refused(PLAIN, Part { run: softmax, ..PLAIN }, &[lost, "of softmax_last_dim softmax"]);
    let constant = |errors: Tensor, _| Tensor::ones((), DType::F32, errors.device());
    is_refused(PLAIN, Part { loss: constant, ..PLAIN }, &[lost]);
    let detached: Run = |built, micro, x| layer(built, micro, x.detach());
    is_refused(PLAIN, Part { run: detached, ..PLAIN }, &[lost, "x.zeros_like()"]);
}

#[test]
fn parameters_of_which_none_has_a_gradient_are_refused() {
    let lost = "no gradient comes back to any parameter";
    let softmax: Run = |built, micro, x| ops::softmax_last_dim(&layer(built, micro, x)?);
    is_refused(Part { run: softmax, ..PLAIN }, PLAIN, &[lost]);
    // The residual path gives the input its gradient.
    let residual: Run =
        |built, micro, x| &x + ops::softmax_last_dim(&layer(built, micro, x.clone())?)?;
    is_refused(PLAIN, Part { run: residual, ..PLAIN }, &[lost]);
}

#[test]
fn gradients_that_may_be_missing_are_zeros() {
    let ids: Run = |_, _, x| x.abs()?.to_dtype(DType::U32);
    let of_ids: Run = |built, micro, x| layer(built, micro, x.to_dtype(DType::F32)?);
    let (ids, of_ids) = (Part { run: ids, layers: &[], ..PLAIN }, Part { run: of_ids, ..PLAIN });
    let same: Run = |_, _, x| Ok(x);
    let nothing = Part { run: same, layers: &[], ..PLAIN };
    let passed_by = Part { layers: &["linear", "other"], ..PLAIN };
    let no_targets = |errors: Tensor, _| Tensor::zeros((), DType::F32, errors.device());
    let detached: Run = |built, micro, x| {
        layer(built, micro, x.detach())?.broadcast_add(&(&x * x.zeros_like()?)?.sum_all()?)
    };
    for (first, last) in [
        (ids, of_ids),
        (nothing, PLAIN),
        (PLAIN, nothing),
        (passed_by, passed_by),
        (PLAIN, Part { loss: no_targets, ..PLAIN }),
        (PLAIN, Part { run: detached, ..PLAIN }),
    ] {
        train(first, last).expect("trained");
    }
}

#[test]
fn a_piece_that_writes_into_its_weights_is_refused() {
    let norm: Run = |built, micro, x| {
        let norm = built.norm.as_ref().expect("a norm");
        norm.forward_t(&layer(built, micro, x)?, micro.training)
    };
    let part = Part { run: norm, layers: &["linear", "norm"], ..PLAIN };
    is_refused(part, PLAIN, &["writes into its weight `0.norm.running_mean`", "layer_norm_slow"]);
    let fixed: Run = |built, micro, x| {
        let norm = built.norm.as_ref().expect("a norm");
        norm.forward_t(&layer(built, micro, x)?, false)
    };
    train(Part { run: fixed, ..part }, PLAIN).expect("trained");
}

#[test]
fn a_loss_of_several_numbers_is_refused_with_its_shape() {
    let several = Part { loss: |errors, _| Ok(errors), ..PLAIN };
    is_refused(PLAIN, several, &["stage 1 gave a loss of shape [2, 4]"]);
}

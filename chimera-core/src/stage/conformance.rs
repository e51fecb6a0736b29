//! What every stage has to do, as functions that panic at the first law that is broken.
//!
//! A test of a model calls [`all`] with a device, a function that makes the stages of one cut, and samples. It checks
//! gradients against differences of the loss, that gradients are added, that halves of the backward pass may wait and
//! go in any order, that recomputed and split activations give the gradients that whole ones give, and that a stage
//! keeps nothing between two calls.

mod gradients;

use self::gradients::{Gradients, ROUNDING, along, bits, dot, is_near, scaled, signs};
use super::{Data, Micro, Output, Param, Stage, initial};
use crate::device::Device;

/// Samples of a step that the suite reads.
const SAMPLES: usize = 4;
/// Error of a gradient, beside what differences of a loss in f32 can tell.
const SLOPE: f64 = 2e-2;
/// Length of a step along a direction of all weights.
const STEP: f64 = 1e-2;
/// Seed of the weights.
const SEED: u64 = 11;

/// Checks the stages of a model, first to last, as `stages` makes them.
///
/// # Panics
/// If a law is broken; the message says which.
pub fn all<D, S>(device: &D, stages: impl Fn() -> Vec<S>, data: &dyn Data<S::Item>)
where
    D: Device,
    S: Stage<Tensor = D::Tensor>,
{
    let chain = || Chain::new(device, stages(), data);
    chain().has_names();
    chain().repeats_itself();
    chain().gradients_are_slopes();
    chain().gradients_are_added();
    chain().micro_batches_go_in_any_order();
    chain().recomputes();
    chain().splits();
    chain().evaluates();
    keeps_nothing(chain);
}

/// Stages with their weights, and samples.
struct Chain<'c, D: Device, S: Stage> {
    device: &'c D,
    stages: Vec<S>,
    weights: Vec<Vec<D::Tensor>>,
    input: Vec<Vec<S::Item>>,
    target: Vec<Vec<S::Item>>,
    loss_scale: f64,
}

/// What a forward pass through all stages leaves.
struct Forward<S: Stage> {
    loss: f64,
    grad: S::Tensor,
    /// Inputs of the stages, and what they saved.
    stages: Vec<(Option<S::Tensor>, S::Saved)>,
}

impl<'c, D: Device, S: Stage<Tensor = D::Tensor>> Chain<'c, D, S> {
    fn new(device: &'c D, stages: Vec<S>, data: &dyn Data<S::Item>) -> Self {
        assert!(!stages.is_empty(), "a model has at least one stage");
        let samples = (0..SAMPLES).map(|sample| {
            let (mut input, mut target) = (Vec::new(), Vec::new());
            data.sample(0, sample as u64, &mut input, &mut target).expect("samples can be read");
            (input, target)
        });
        let (input, target) = samples.unzip();
        let upload =
            |param: &Param| device.upload(&param.shape, &noisy(param)).expect("weights fit");
        let weights = stages.iter().map(|stage| stage.params().iter().map(upload).collect());
        let loss_scale = 1.0 / (SAMPLES * data.n_targets()) as f64;
        Chain { device, weights: weights.collect(), stages, input, target, loss_scale }
    }

    /// Runs `act` with samples `first .. first + n` as `stage` sees them.
    fn with_micro<R>(
        &self,
        stage: &S,
        [first, n]: [usize; 2],
        act: impl FnOnce(&Micro<'_, S::Item>) -> R,
    ) -> R {
        let read = |samples: &[Vec<S::Item>]| match stage.needs_inputs() {
            true => samples[first..first + n].concat(),
            false => Vec::new(),
        };
        let is_last = self.stages.last().is_some_and(|last| std::ptr::eq(last, stage));
        let input = read(&self.input);
        let target = if is_last { read(&self.target) } else { Vec::new() };
        act(&Micro {
            step: 0,
            sample: first as u64,
            input: &input,
            target: &target,
            loss_scale: self.loss_scale,
            training: true,
        })
    }

    fn forward(&self, samples: [usize; 2]) -> Forward<S> {
        let (mut x, mut saved) = (None, Vec::new());
        let last = self.stages.len() - 1;
        for (n, (stage, w)) in self.stages.iter().zip(&self.weights).enumerate() {
            self.has_shape(stage.input_shape(samples[1]), x.as_ref(), n, "input");
            let input: Option<D::Tensor> = x.take();
            let result =
                self.with_micro(stage, samples, |micro| stage.forward(w, micro, input.clone()));
            let (output, of_stage) = result.unwrap_or_else(|e| panic!("stage {n} forward: {e}"));
            saved.push((input, of_stage));
            match output {
                Output::Activation(y) => {
                    assert!(n < last, "the last stage gives a loss where it has targets");
                    self.has_shape(stage.output_shape(samples[1]), Some(&y), n, "output");
                    x = Some(y);
                }
                Output::Loss { loss, grad } => {
                    assert_eq!(n, last, "only the last stage gives a loss");
                    return Forward { loss: self.number(&loss), grad, stages: saved };
                }
            }
        }
        unreachable!("the last stage gives a loss or an activation")
    }

    fn has_shape(&self, said: Option<Vec<usize>>, x: Option<&D::Tensor>, n: usize, what: &str) {
        if let (Some(said), Some(x)) = (said, x) {
            assert_eq!(self.device.shape(x), said, "the {what} of stage {n} has another shape");
        }
    }

    /// The input half of the backward pass; what it leaves for the weight half, first stage first.
    fn backward_input(&self, samples: [usize; 2], forward: Forward<S>) -> Vec<S::Deferred> {
        let (mut dy, mut deferred) = (Some(forward.grad), Vec::new());
        let stages = self.stages.iter().zip(&self.weights).zip(forward.stages).enumerate();
        for (n, ((stage, w), (_, saved))) in stages.rev() {
            let dy_n = dy.take().unwrap_or_else(|| panic!("stage {} gave no gradient", n + 1));
            let result = self
                .with_micro(stage, samples, |micro| stage.backward_input(w, micro, saved, dy_n));
            let (dx, rest) = result.unwrap_or_else(|e| panic!("stage {n} backward: {e}"));
            assert_eq!(dx.is_none(), n == 0, "all stages but the first give the input's gradient");
            self.has_shape(stage.input_shape(samples[1]), dx.as_ref(), n, "gradient");
            dy = dx;
            deferred.push(rest);
        }
        deferred.reverse();
        deferred
    }

    fn backward_weight(
        &self,
        samples: [usize; 2],
        deferred: Vec<S::Deferred>,
        into: &mut [Vec<D::Tensor>],
    ) {
        for ((stage, deferred), into) in self.stages.iter().zip(deferred).zip(into) {
            let added = self
                .with_micro(stage, samples, |micro| stage.backward_weight(micro, deferred, into));
            added.expect("the weight half of a backward pass");
        }
    }

    /// Accumulators that hold `value` everywhere.
    fn accumulators(&self, value: f32) -> Vec<Vec<D::Tensor>> {
        let upload = |p: &Param| self.device.upload(&p.shape, &vec![value; p.n_elements()]);
        let of = |stage: &S| stage.params().iter().map(|p| upload(p).expect("room")).collect();
        self.stages.iter().map(of).collect()
    }

    /// Loss and gradients of all samples at once, of which saved activations are first treated by `act`.
    fn train(
        &self,
        act: impl Fn(usize, Option<D::Tensor>, S::Saved) -> S::Saved,
    ) -> (f64, Gradients) {
        let (all, mut into) = ([0, SAMPLES], self.accumulators(0.0));
        let mut forward = self.forward(all);
        let stages = forward.stages.into_iter().enumerate();
        forward.stages = stages.map(|(n, (x, saved))| (None, act(n, x, saved))).collect();
        let loss = forward.loss;
        let deferred = self.backward_input(all, forward);
        self.backward_weight(all, deferred, &mut into);
        (loss, self.values(&into))
    }

    fn plain(&self) -> (f64, Gradients) {
        self.train(|_, _, saved| saved)
    }

    fn values(&self, tensors: &[Vec<D::Tensor>]) -> Gradients {
        let download =
            |tensor: &D::Tensor| self.device.download(tensor).expect("a tensor is there");
        tensors.iter().map(|of_stage| of_stage.iter().map(download).collect()).collect()
    }

    fn number(&self, tensor: &D::Tensor) -> f64 {
        let values = self.device.download(tensor).expect("a loss is there");
        assert_eq!(values.len(), 1, "a loss is one number");
        f64::from(values[0])
    }

    /// Adds `by` to all weights, in place.
    fn move_weights(&mut self, by: &Gradients) {
        let tensors = self.weights.iter_mut().flatten().zip(by.iter().flatten());
        for (weight, by) in tensors {
            let by = self.device.upload(&self.device.shape(weight), by).expect("room");
            self.device.accumulate(weight, &by).expect("weights can be changed");
        }
    }

    fn has_names(&self) {
        let params = self.stages.iter().flat_map(|stage| stage.params());
        let mut names: Vec<_> = params.filter(|p| !p.tied).map(|p| p.name.as_str()).collect();
        assert!(!names.is_empty(), "a model has parameters");
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n, "two parameters have one name");
    }

    fn repeats_itself(&self) {
        let ((a, a_grads), (b, b_grads)) = (self.plain(), self.plain());
        assert!(a.is_finite(), "the loss is {a}");
        assert_eq!(a, b, "a forward pass run twice gives two losses");
        assert!(bits(&a_grads) == bits(&b_grads), "a backward pass run twice gives two gradients");
    }

    fn gradients_are_slopes(&mut self) {
        let (_, gradients) = self.plain();
        for direction in [along(&gradients), signs(&gradients)] {
            let expected = dot(&gradients, &direction);
            self.move_weights(&scaled(&direction, STEP));
            let above = self.forward([0, SAMPLES]).loss;
            self.move_weights(&scaled(&direction, -2.0 * STEP));
            let below = self.forward([0, SAMPLES]).loss;
            self.move_weights(&scaled(&direction, STEP));
            let slope = (above - below) / (2.0 * STEP);
            let allowed = SLOPE * dot(&gradients, &gradients).sqrt() + 1e-4;
            assert!(
                (slope - expected).abs() <= allowed,
                "the loss changes by {slope} along a direction whose gradient is {expected}"
            );
        }
    }

    fn gradients_are_added(&self) {
        let (all, mut into) = ([0, SAMPLES], self.accumulators(1.0));
        let deferred = self.backward_input(all, self.forward(all));
        self.backward_weight(all, deferred, &mut into);
        let mut expected = self.plain().1;
        expected.iter_mut().flatten().flatten().for_each(|g| *g += 1.0);
        is_near(&self.values(&into), &expected, "gradients are not added to what is there");
    }

    fn micro_batches_go_in_any_order(&self) {
        let (loss, expected) = self.plain();
        let mut into = self.accumulators(0.0);
        let mut forwards: Vec<_> = (0..SAMPLES).map(|m| Some(self.forward([m, 1]))).collect();
        let sum: f64 = forwards.iter().flatten().map(|forward| forward.loss).sum();
        assert!(
            (sum - loss).abs() <= ROUNDING * loss.abs(),
            "losses of parts are {sum}, not {loss}"
        );
        let mut deferred: Vec<_> = (0..SAMPLES).map(|_| None).collect();
        for m in [2, 0, 3, 1] {
            deferred[m] = forwards[m].take().map(|f| self.backward_input([m, 1], f));
        }
        for m in [1, 3, 0, 2] {
            let deferred = deferred[m].take().expect("each once");
            self.backward_weight([m, 1], deferred, &mut into);
        }
        is_near(&self.values(&into), &expected, "gradients of parts in another order differ");
    }

    fn recomputes(&self) {
        let expected = bits(&self.plain().1);
        let all = [0, SAMPLES];
        let again = self.train(|n, x, _| {
            let (stage, w) = (&self.stages[n], &self.weights[n]);
            self.with_micro(stage, all, |micro| stage.recompute(w, micro, x)).expect("recomputes")
        });
        assert!(bits(&again.1) == expected, "recomputed activations give other gradients");
        let selected = self.train(|n, _, saved| {
            let (stage, w) = (&self.stages[n], &self.weights[n]);
            if !stage.has_selective_recompute() {
                return saved;
            }
            let selected = stage.select(saved);
            self.with_micro(stage, all, |micro| stage.restore(w, micro, selected))
                .expect("restores")
        });
        assert!(bits(&selected.1) == expected, "restored activations give other gradients");
    }

    fn splits(&self) {
        if !self.stages.iter().all(Stage::can_split_saved) {
            return;
        }
        let (half, mut into) = (SAMPLES / 2, self.accumulators(0.0));
        let forward = self.forward([0, SAMPLES]);
        let mut halves = [Vec::new(), Vec::new()];
        for (stage, (_, saved)) in self.stages.iter().zip(forward.stages) {
            let bytes = stage.saved_bytes(&saved);
            let parts = stage.split_saved(saved, 2).expect("saved activations can be split");
            assert_eq!(parts.len(), 2, "as many parts as asked");
            let of_parts: u64 = parts.iter().map(|part| stage.saved_bytes(part)).sum();
            assert_eq!(of_parts, bytes, "bytes of the parts are those of the whole");
            for (half, part) in halves.iter_mut().zip(parts) {
                half.push((None, part));
            }
        }
        let rows = self.device.shape(&forward.grad)[0];
        for (n, stages) in halves.into_iter().enumerate() {
            let grad = self.device.rows(&forward.grad, n * rows / 2, rows / 2);
            let forward = Forward { loss: 0.0, grad: grad.expect("rows"), stages };
            let samples = [n * half, half];
            let deferred = self.backward_input(samples, forward);
            self.backward_weight(samples, deferred, &mut into);
        }
        is_near(&self.values(&into), &self.plain().1, "split activations give other gradients");
    }

    fn evaluates(&self) {
        let mut x = None;
        for (stage, w) in self.stages.iter().zip(&self.weights) {
            let output = self.with_micro(stage, [0, 1], |micro| {
                stage.forward(w, &Micro { target: &[], training: false, ..*micro }, x.take())
            });
            match output.expect("an evaluation").0 {
                Output::Activation(y) => x = Some(y),
                Output::Loss { .. } => panic!("without targets the last stage gives its output"),
            }
        }
    }
}

/// A stage that kept weights of an earlier call would use them instead of those it is given.
fn keeps_nothing<'c, D, S>(chain: impl Fn() -> Chain<'c, D, S>)
where
    D: Device,
    S: Stage<Tensor = D::Tensor>,
{
    let mut used = chain();
    let by = scaled(&signs(&used.plain().1), 3.0);
    used.move_weights(&by);
    let mut fresh = chain();
    fresh.move_weights(&by);
    let (expected, gradients) = fresh.plain();
    let same =
        |(loss, grads): (f64, Gradients)| loss == expected && bits(&grads) == bits(&gradients);
    assert!(same(used.plain()), "a stage keeps weights that were changed in place since");
    let mut other = chain();
    other.plain();
    other.weights = fresh.weights;
    assert!(same(other.plain()), "a stage keeps weights of an earlier call");
}

/// Initial weights of which none is zero.
fn noisy(param: &Param) -> Vec<f32> {
    let noise = Param { init: super::Init::Normal(0.1), ..param.clone() };
    let values = initial(param, SEED).into_iter().zip(initial(&noise, SEED + 1));
    values.map(|(value, noise)| value + noise).collect()
}

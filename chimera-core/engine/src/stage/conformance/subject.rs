//! The stages under test, and passes through all of them.

use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::StageId;
use rustc_hash::FxHashMap;

use super::gradients::Gradients;
use crate::device::{Device, Dtype, Elements};
use crate::stage::{
    Data, Init, Micro, Output, Param, Stage, StageEdges, has_output_per_edge, initial,
};

/// Number of samples that the suite reads.
pub(super) const SAMPLES: usize = 4;
const SEED: u64 = 11;

/// The stages under test with their weights, and samples.
pub(super) struct Subject<'c, D: Device, S: Stage> {
    pub(super) device: &'c D,
    pub(super) graph: StageGraph,
    pub(super) stages: Vec<S>,
    pub(super) weights: Vec<Vec<D::Tensor>>,
    input: Vec<Vec<S::Item>>,
    target: Vec<Vec<S::Item>>,
    pub(super) loss_scale: f64,
}

/// The result of a forward pass through all stages.
pub(super) struct Passed<S: Stage> {
    /// The sum of all losses.
    pub(super) loss: f64,
    /// The unit in the last place of the losses.
    pub(super) last_place: f64,
    /// By stage: the gradient of its loss, if it has one.
    pub(super) grads: Vec<Option<S::Tensor>>,
    /// By stage: its inputs and its saved activations.
    pub(super) stages: Vec<(Vec<S::Tensor>, S::Saved)>,
}

impl<'c, D: Device, S: Stage<Tensor = D::Tensor>> Subject<'c, D, S> {
    pub(super) fn new(
        device: &'c D,
        graph: StageGraph,
        stages: Vec<S>,
        data: &dyn Data<S::Item>,
    ) -> Self {
        assert!(!stages.is_empty(), "a model has at least one stage");
        assert_eq!(stages.len(), graph.n_stages(), "the graph has other stages");
        let samples = (0..SAMPLES).map(|sample| {
            let (mut input, mut target) = (Vec::new(), Vec::new());
            data.sample(0, sample as u64, &mut input, &mut target).expect("samples can be read");
            assert_eq!(
                target.len(),
                data.target_len(),
                "numbers that sample {sample} appends to `target`"
            );
            (input, target)
        });
        let (input, target) = samples.unzip();
        let upload =
            |param: &Param| device.upload(&param.shape, &noisy(param)).expect("weights fit");
        let weights = stages.iter().map(|stage| stage.params().iter().map(upload).collect());
        let loss_scale = 1.0 / (SAMPLES * data.n_targets()) as f64;
        Subject { device, graph, weights: weights.collect(), stages, input, target, loss_scale }
    }

    /// The edges of a stage in the graph.
    pub(super) fn edges(&self, n: usize) -> StageEdges {
        StageEdges::of(&self.graph, StageId(n as u16))
    }

    /// Runs `act` with `n` samples from `first`, as the stage sees them.
    pub(super) fn with_micro<R>(
        &self,
        stage: usize,
        [first, n]: [usize; 2],
        act: impl FnOnce(&Micro<'_, S::Item>) -> R,
    ) -> R {
        let read = |samples: &[Vec<S::Item>]| {
            if self.stages[stage].needs_inputs() {
                samples[first..first + n].concat()
            } else {
                Vec::new()
            }
        };
        let has_loss = self.graph.has_loss(StageId(stage as u16));
        let input = read(&self.input);
        let target = if has_loss { read(&self.target) } else { Vec::new() };
        act(&Micro {
            step: 0,
            sample: first as u64,
            input: &input,
            target: &target,
            loss_scale: self.loss_scale,
            training: true,
        })
    }

    pub(super) fn forward(&self, samples: [usize; 2]) -> Passed<S> {
        let mut all = Passed { loss: 0.0, last_place: 0.0, grads: Vec::new(), stages: Vec::new() };
        self.walk(samples, true, |inputs, output, saved| {
            all.stages.push((inputs, saved));
            all.grads.push(output.map(|output| match output {
                Output::Loss { loss, grad } => {
                    let number = self.number(&loss);
                    all.loss += number;
                    all.last_place += number.abs() * epsilon(self.device.dtype(&loss));
                    grad
                }
                Output::Activation(_) => panic!("a stage gives its loss where it has targets"),
            }));
        });
        all
    }

    /// Without targets, a stage with a loss returns its output instead.
    pub(super) fn evaluates(&self) {
        self.walk([0, 1], false, |_, output, _| {
            let is_loss = matches!(output, Some(Output::Loss { .. }));
            assert!(!is_loss, "without targets the last stage gives its output");
        });
    }

    /// Runs all stages forward on samples, which have targets only if `training`. Passes to `visit`
    /// the inputs of each stage, its loss or the output it returned instead, and its saved
    /// activations.
    fn walk(
        &self,
        samples: [usize; 2],
        training: bool,
        mut visit: impl FnMut(Vec<D::Tensor>, Option<Output<D::Tensor>>, S::Saved),
    ) {
        let mut carried = FxHashMap::default();
        for id in self.graph.stages() {
            let (n, edges) = (id.index(), self.edges(id.index()));
            let (stage, w) = (&self.stages[n], &self.weights[n]);
            let taken =
                self.graph.inputs(id).iter().filter_map(|from| carried.remove(&(*from, id)));
            let inputs: Vec<D::Tensor> = taken.collect();
            if edges.n_inputs() == 1 {
                let said = stage.sizes().and_then(|sizes| sizes.input_shape(samples[1]));
                self.has_shape(said, inputs.first(), n, "input");
            }
            let result = self.with_micro(n, samples, |micro| {
                let target = if training { micro.target } else { &[] };
                edges.forward(stage, w, &Micro { target, training, ..*micro }, inputs.clone())
            });
            let (mut given, saved) = result.unwrap_or_else(|e| panic!("stage {n} forward: {e}"));
            let last = if self.graph.has_loss(id) { given.pop() } else { None };
            let activations = given.into_iter().filter_map(|output| match output {
                Output::Activation(y) => Some(y),
                Output::Loss { .. } => None,
            });
            let activations: Vec<D::Tensor> = activations.collect();
            if !has_output_per_edge(stage) {
                let said = stage.sizes().and_then(|sizes| sizes.output_shape(samples[1]));
                self.has_shape(said, activations.first(), n, "output");
            }
            let ends = self.graph.outputs(id).iter().map(|to| (id, *to));
            carried.extend(ends.zip(edges.along_edges(activations)));
            visit(inputs, last, saved);
        }
    }

    fn has_shape(&self, said: Option<Vec<usize>>, x: Option<&D::Tensor>, n: usize, what: &str) {
        if let (Some(said), Some(x)) = (said, x) {
            assert_eq!(self.device.shape(x), said, "the {what} of stage {n} has another shape");
        }
    }

    /// Runs the input half of the backward pass. Returns the deferred work, by stage.
    pub(super) fn backward_input(
        &self,
        samples: [usize; 2],
        forward: Passed<S>,
    ) -> Vec<S::Deferred> {
        let (mut carried, mut deferred) = (FxHashMap::default(), Vec::new());
        let stages = forward.stages.into_iter().zip(forward.grads).enumerate();
        for (n, ((inputs, saved), of_loss)) in stages.rev() {
            let (id, on) = (StageId(n as u16), (&self.stages[n], self.device));
            let edges = self.graph.outputs(id).iter();
            let mut dy: Vec<_> = edges.filter_map(|to| carried.remove(&(id, *to))).collect();
            dy.extend(of_loss);
            let result = self.with_micro(n, samples, |micro| {
                self.edges(n).backward_input(on, &self.weights[n], micro, saved, dy)
            });
            let (dx, rest) = result.unwrap_or_else(|e| panic!("stage {n} backward: {e}"));
            assert_eq!(dx.len(), self.edges(n).n_inputs(), "gradients of the inputs of stage {n}");
            // Inputs are empty where the saved activations were transformed.
            for (dx, x) in dx.iter().zip(&inputs) {
                self.has_shape(Some(self.device.shape(x)), Some(dx), n, "gradient of an input");
            }
            if let [dx] = &dx[..] {
                let said = on.0.sizes().and_then(|sizes| sizes.input_shape(samples[1]));
                self.has_shape(said, Some(dx), n, "gradient");
            }
            carried.extend(self.graph.inputs(id).iter().map(|from| (*from, id)).zip(dx));
            deferred.push(rest);
        }
        deferred.reverse();
        deferred
    }

    pub(super) fn backward_weight(
        &self,
        samples: [usize; 2],
        deferred: Vec<S::Deferred>,
        into: &mut [Vec<D::Tensor>],
    ) {
        for (n, (deferred, into)) in deferred.into_iter().zip(into).enumerate() {
            let stage = &self.stages[n];
            let added =
                self.with_micro(n, samples, |micro| stage.backward_weight(micro, deferred, into));
            added.unwrap_or_else(|e| panic!("stage {n}, the weight half of a backward pass: {e}"));
            for (gradient, param) in into.iter().zip(stage.params()) {
                let got = self.device.shape(gradient);
                assert_eq!(
                    got,
                    param.gradient_shape(),
                    "the gradient of {} of stage {n}",
                    param.name
                );
            }
        }
    }

    /// Accumulators filled with `value`.
    pub(super) fn accumulators(&self, value: f32) -> Vec<Vec<D::Tensor>> {
        let upload = |p: &Param| {
            let shape = p.gradient_shape();
            self.device.upload(&shape, &vec![value; shape.iter().product()])
        };
        let of = |stage: &S| stage.params().iter().map(|p| upload(p).expect("room")).collect();
        self.stages.iter().map(of).collect()
    }

    /// Returns loss and gradients of all samples, after `act` on the saved activations.
    pub(super) fn train(
        &self,
        act: impl Fn(usize, Vec<D::Tensor>, S::Saved) -> S::Saved,
    ) -> (f64, Gradients) {
        let (all, mut into) = ([0, SAMPLES], self.accumulators(0.0));
        let mut forward = self.forward(all);
        let stages = forward.stages.into_iter().enumerate();
        forward.stages = stages.map(|(n, (x, saved))| (Vec::new(), act(n, x, saved))).collect();
        let loss = forward.loss;
        let deferred = self.backward_input(all, forward);
        self.backward_weight(all, deferred, &mut into);
        (loss, self.values(&into))
    }

    pub(super) fn plain(&self) -> (f64, Gradients) {
        self.train(|_, _, saved| saved)
    }

    pub(super) fn values(&self, tensors: &[Vec<D::Tensor>]) -> Gradients {
        let download =
            |tensor: &D::Tensor| self.device.download(tensor).expect("a tensor is there");
        tensors.iter().map(|of_stage| of_stage.iter().map(download).collect()).collect()
    }

    /// Reads a loss, in the device's own type.
    pub(super) fn number(&self, tensor: &D::Tensor) -> f64 {
        let n: usize = self.device.shape(tensor).iter().product();
        assert_eq!(n, 1, "a loss is one number");
        let mut words = Vec::new();
        self.device.download_words(tensor, &mut words).expect("a loss is there");
        let dtype = self.device.dtype(tensor);
        Elements { dtype, words }.to_f64(n).into_iter().sum()
    }

    /// Adds `by` to all weights, in place.
    pub(super) fn move_weights(&mut self, by: &Gradients) {
        let tensors = self.weights.iter_mut().flatten().zip(by.iter().flatten());
        for (weight, by) in tensors.filter(|(_, by)| !by.is_empty()) {
            let by = self.device.upload(&self.device.shape(weight), by).expect("room");
            self.device.accumulate(weight, &by).expect("weights can be changed");
        }
    }
}

/// Distance from 1 to the next larger number of a type.
fn epsilon(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => f64::EPSILON,
        Dtype::F32 => f64::from(f32::EPSILON),
        Dtype::Bf16 | Dtype::Packed => 1.0 / 128.0,
    }
}

/// Initial weights with noise, so that none is zero.
fn noisy(param: &Param) -> Vec<f32> {
    let noise = Param { init: Init::Normal(0.1), ..param.clone() };
    let values = initial(param, SEED).into_iter().zip(initial(&noise, SEED + 1));
    values.map(|(value, noise)| value + noise).collect()
}

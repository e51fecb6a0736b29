//! The requirements on every stage, as functions that panic at the first violation.
//!
//! A model's test calls [`all`] with a device, a function that makes the stages of one cut, and
//! samples; or [`graph`] if the stages are not a chain. It checks that
//! - gradients agree with finite differences of the loss;
//! - loss and gradients scale with [`Micro::loss_scale`](super::Micro::loss_scale);
//! - gradients are added to the accumulators;
//! - the halves of backward passes may be delayed and reordered;
//! - recomputed, split and moved activations give the same gradients as the original ones;
//! - slices of sequences, if a stage supports them, add up to whole sequences;
//! - a stage keeps nothing between two calls.

mod gradients;
mod slices;
mod subject;

use chimera_schedule::graph::StageGraph;

use self::gradients::{Gradients, ROUNDING, along, bits, dot, is_near, scaled, signs};
use self::subject::{Passed, SAMPLES, Subject};
use super::{Data, Stage};
use crate::device::Device;

/// Allowed relative error of a gradient, beyond the resolution of finite differences.
const SLOPE: f64 = 2e-2;
/// Step lengths along a direction of all weights. The curvature of a deep model's loss needs short
/// steps, the rounding of a loss long ones.
const STEPS: [f64; 5] = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6];
/// Allowed error of a loss, in units in the last place.
const LOSS_ERROR: f64 = 16.0;
/// Ratio of the second loss scale to the first; a power of two, so that it adds no rounding.
const OTHER_SCALE: f64 = 4.0;

/// Checks the stages of a chain; `stages` makes them, first to last.
///
/// # Panics
/// If a requirement is violated; the message says which.
pub fn all<D, S>(device: &D, stages: impl Fn() -> Vec<S>, data: &dyn Data<S::Item>)
where
    D: Device,
    S: Stage<Tensor = D::Tensor>,
{
    graph(device, &StageGraph::chain(stages().len().max(1)), stages, data);
}

/// Checks the stages of a graph, as [`all`] checks those of a chain.
///
/// # Panics
/// If a requirement is violated; the message says which.
pub fn graph<D, S>(
    device: &D,
    graph: &StageGraph,
    stages: impl Fn() -> Vec<S>,
    data: &dyn Data<S::Item>,
) where
    D: Device,
    S: Stage<Tensor = D::Tensor>,
{
    let subject = || Subject::new(device, graph.clone(), stages(), data);
    subject().has_names();
    subject().repeats_itself();
    subject().gradients_are_slopes();
    subject().heeds_its_loss_scale();
    subject().gradients_are_added();
    subject().micro_batches_go_in_any_order();
    subject().recomputes();
    subject().splits();
    subject().comes_back();
    subject().slices_add_up();
    subject().evaluates();
    keeps_nothing(subject);
}

/// The slope of a loss, as measured by a step.
struct Slope {
    step: f64,
    slope: f64,
    /// Error that rounding of the loss may cause.
    error: f64,
}

impl<D: Device, S: Stage<Tensor = D::Tensor>> Subject<'_, D, S> {
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
            let allowed = SLOPE * dot(&gradients, &gradients).sqrt() + 1e-4;
            let Slope { slope, step, .. } = self.settled_slope(&direction, allowed);
            assert!(
                (slope - expected).abs() <= allowed,
                "the loss changes by {slope} along a direction whose gradient is {expected} (in steps of {step:e}, the \
                 shortest of those that were tried)"
            );
        }
    }

    /// Measures the slope of the loss along a direction, in ever shorter steps, until it settles or
    /// the error of the loss dominates.
    fn settled_slope(&mut self, direction: &Gradients, allowed: f64) -> Slope {
        let mut last = self.slope(direction, STEPS[0]);
        for step in &STEPS[1..] {
            if last.error * last.step / step > allowed / 4.0 {
                break;
            }
            let next = self.slope(direction, *step);
            let is_settled = (next.slope - last.slope).abs() <= allowed / 2.0;
            last = next;
            if is_settled {
                break;
            }
        }
        last
    }

    /// Measures the slope of the loss along a direction, by a step to both sides.
    fn slope(&mut self, direction: &Gradients, step: f64) -> Slope {
        self.move_weights(&scaled(direction, step));
        let above = self.forward([0, SAMPLES]);
        self.move_weights(&scaled(direction, -2.0 * step));
        let below = self.forward([0, SAMPLES]);
        self.move_weights(&scaled(direction, step));
        let error = LOSS_ERROR * above.last_place.max(below.last_place) / step;
        Slope { step, slope: (above.loss - below.loss) / (2.0 * step), error }
    }

    /// A single scale cannot tell whether a stage multiplies by it or by a constant of its own.
    fn heeds_its_loss_scale(&mut self) {
        let (loss, gradients) = self.plain();
        self.loss_scale *= OTHER_SCALE;
        let (got, got_gradients) = self.plain();
        let expected = OTHER_SCALE * loss;
        assert!(
            (got - expected).abs() <= ROUNDING * expected.abs(),
            "the loss is {got} where {expected} is expected of a loss_scale {OTHER_SCALE} times as large as one that gives \
             {loss}: a stage multiplies its summed loss by Micro::loss_scale"
        );
        let what = "gradients are not those of the loss times Micro::loss_scale";
        is_near(&got_gradients, &scaled(&gradients, OTHER_SCALE), what);
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
            let (stage, w, edges) = (&self.stages[n], &self.weights[n], self.edges(n));
            self.with_micro(n, all, |micro| edges.recompute(stage, w, micro, x))
                .expect("recomputes")
        });
        assert!(bits(&again.1) == expected, "recomputed activations give other gradients");
        let selected = self.train(|n, _, saved| {
            let (stage, w) = (&self.stages[n], &self.weights[n]);
            let Some(stage) = stage.selective() else { return saved };
            let selected = stage.select(saved);
            self.with_micro(n, all, |micro| stage.restore(w, micro, selected)).expect("restores")
        });
        assert!(bits(&selected.1) == expected, "restored activations give other gradients");
    }

    /// Saved activations that are taken apart survive a trip to another memory.
    fn comes_back(&self) {
        let expected = bits(&self.plain().1);
        let moved = self.train(|n, _, saved| {
            let stage = &self.stages[n];
            let Some(movable) = stage.movable() else { return saved };
            let bytes = saved_bytes(stage, &saved);
            let (tensors, reassemble) = movable.take_apart(saved).expect("can be taken apart");
            let reload = self.device.offload(tensors).expect("goes");
            let saved = reassemble(reload(self.device).expect("comes back")).expect("is whole");
            assert_eq!(saved_bytes(stage, &saved), bytes, "moved activations have other bytes");
            saved
        });
        assert!(bits(&moved.1) == expected, "moved activations give other gradients");
    }

    fn splits(&self) {
        let splittable: Option<Vec<_>> = self.stages.iter().map(Stage::splittable).collect();
        let Some(splittable) = splittable else { return };
        let (half, mut into) = (SAMPLES / 2, self.accumulators(0.0));
        let forward = self.forward([0, SAMPLES]);
        let mut halves = [Vec::new(), Vec::new()];
        let stages = self.stages.iter().zip(splittable);
        for ((stage, splittable), (_, saved)) in stages.zip(forward.stages) {
            let bytes = saved_bytes(stage, &saved);
            let parts = splittable.split_saved(saved, 2).expect("saved activations can be split");
            assert_eq!(parts.len(), 2, "as many parts as asked");
            let of_parts: u64 = parts.iter().map(|part| saved_bytes(stage, part)).sum();
            assert_eq!(of_parts, bytes, "bytes of the parts are those of the whole");
            for (half, part) in halves.iter_mut().zip(parts) {
                half.push((Vec::new(), part));
            }
        }
        for (n, stages) in halves.into_iter().enumerate() {
            let of_half = |grad: &D::Tensor| {
                let rows = self.device.shape(grad)[0];
                self.device.rows(grad, n * rows / 2, rows / 2).expect("rows")
            };
            let grads = forward.grads.iter().map(|grad| grad.as_ref().map(of_half)).collect();
            let samples = [n * half, half];
            let deferred =
                self.backward_input(samples, Passed { loss: 0.0, last_place: 0.0, grads, stages });
            self.backward_weight(samples, deferred, &mut into);
        }
        is_near(&self.values(&into), &self.plain().1, "split activations give other gradients");
    }
}

fn saved_bytes<S: Stage>(stage: &S, saved: &S::Saved) -> u64 {
    stage.sizes().map_or(0, |sizes| sizes.saved_bytes(saved))
}

/// A stage that kept weights of an earlier call would use them instead of the weights passed to it.
fn keeps_nothing<'c, D, S>(subject: impl Fn() -> Subject<'c, D, S>)
where
    D: Device,
    S: Stage<Tensor = D::Tensor>,
{
    let mut used = subject();
    let by = scaled(&signs(&used.plain().1), 3.0);
    used.move_weights(&by);
    let mut fresh = subject();
    fresh.move_weights(&by);
    let (expected, gradients) = fresh.plain();
    let same =
        |(loss, grads): (f64, Gradients)| loss == expected && bits(&grads) == bits(&gradients);
    assert!(same(used.plain()), "a stage keeps weights that were changed in place since");
    let mut other = subject();
    other.plain();
    other.weights = fresh.weights;
    assert!(same(other.plain()), "a stage keeps weights of an earlier call");
}

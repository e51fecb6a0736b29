//! Slices of sequences give the same results as whole sequences.

use super::is_near;
use super::subject::{SAMPLES, Subject};
use crate::device::Device;
use crate::stage::{Left, Output, Slice, SliceGradients, Stage};

/// Slices per sequence. The samples must have at least this many tokens.
const SLICES: usize = 2;

impl<D: Device, S: Stage<Tensor = D::Tensor>> Subject<'_, D, S> {
    /// Runs the slices forward in order, and backward from the last one.
    pub(super) fn slices_add_up(&self) {
        let sliced: Option<Vec<_>> = self.stages.iter().map(Stage::sliced).collect();
        let Some(sliced) = sliced.filter(|_| self.graph.is_chain()) else { return };
        let all = [0, SAMPLES];
        let mut lefts: Vec<Vec<Left<D::Tensor>>> = self.stages.iter().map(|_| Vec::new()).collect();
        let (mut loss, mut saved, mut grads) = (0.0, Vec::new(), Vec::new());
        for _ in 0..SLICES {
            let (mut x, mut of_stages) = (None, Vec::new());
            for (n, stage) in sliced.iter().enumerate() {
                let slice = Slice { past: &lefts[n], of: SLICES };
                let w = &self.weights[n];
                let again =
                    self.with_micro(n, all, |m| stage.recompute_slice(w, m, slice, x.clone()));
                let ran =
                    self.with_micro(n, all, |micro| stage.forward_slice(w, micro, slice, x.take()));
                let (output, _, left) = ran.unwrap_or_else(|e| panic!("slice of stage {n}: {e}"));
                match output {
                    Output::Activation(y) => x = Some(y),
                    Output::Loss { loss: part, grad } => {
                        loss += self.number(&part);
                        grads.push(grad);
                    }
                }
                let mut saved = again.expect("recomputes");
                if let Some(stage) = self.stages[n].selective() {
                    let selected = stage.select(saved);
                    let restored =
                        self.with_micro(n, all, |m| stage.restore_slice(w, m, slice, selected));
                    saved = restored.expect("restores");
                }
                of_stages.push(saved);
                lefts[n].push(left);
            }
            saved.push(of_stages);
        }
        let mut into = self.accumulators(0.0);
        // By stage: the gradients of what each slice left, summed over the slices after it.
        let mut d_lefts: Vec<Vec<Left<D::Tensor>>> =
            self.stages.iter().map(|_| Vec::new()).collect();
        for (index, (of_stages, grad)) in saved.into_iter().zip(grads).enumerate().rev() {
            let mut dy = Some(grad);
            for (n, saved) in of_stages.into_iter().enumerate().rev() {
                let slice = Slice { past: &lefts[n][..index], of: SLICES };
                let (stage, w) = (&self.stages[n], &self.weights[n]);
                let output = dy.take().expect("a stage gives the gradient of its input");
                let gradients = SliceGradients { output, left: d_lefts[n].pop() };
                let ran = self.with_micro(n, all, |micro| {
                    sliced[n].backward_input_slice(w, micro, slice, saved, gradients)
                });
                let (dx, deferred, d_past) = ran.expect("the input half of a slice");
                assert_eq!(d_past.len(), index, "a gradient for what each slice before left");
                if d_lefts[n].is_empty() {
                    d_lefts[n] = d_past;
                } else {
                    let sums = d_lefts[n].iter_mut().flatten().zip(d_past.iter().flatten());
                    sums.for_each(|(sum, part)| self.device.accumulate(sum, part).expect("adds"));
                }
                let added =
                    self.with_micro(n, all, |m| stage.backward_weight(m, deferred, &mut into[n]));
                added.expect("the weight half of a slice");
                dy = dx;
            }
        }
        let (whole, expected) = self.plain();
        assert!(
            (loss - whole).abs() <= 1e-5 * whole.abs(),
            "losses of slices are {loss}, not {whole}"
        );
        is_near(&self.values(&into), &expected, "gradients of slices differ");
    }
}

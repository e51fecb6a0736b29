//! Measures the memory of a stage by running it once, on the device that it will train on.

use chimera_schedule::costs::StageBytes;

use super::{Micro, Output, Stage};
use crate::device::{Device, Result};

/// Measures the memory per sample of `stage`, by running it forward and backward on a micro-batch
/// of `n_samples` with zero weights. Also returns the input of the next stage.
///
/// The sizes of saved activations and deferred weight work are those that the stage
/// [reports](super::Sizes::saved_bytes). Temporary memory of ops is not known; it is taken to equal
/// the memory that they leave in use.
///
/// # Errors
/// If the device fails.
pub fn measure<S: Stage<Tensor = D::Tensor>, D: Device>(
    device: &D,
    stage: &S,
    micro: &Micro<'_, S::Item>,
    x: Option<D::Tensor>,
    n_samples: usize,
) -> Result<(StageBytes, D::Tensor)> {
    let zeros = || stage.params().iter().map(|param| device.zeros(&param.shape));
    let weights = zeros().collect::<Result<Vec<_>>>()?;
    let mut gradients = zeros().collect::<Result<Vec<_>>>()?;
    let bytes_of = |tensor: &D::Tensor| device.bytes(tensor) as f64;
    let input = x.as_ref().map_or(0.0, bytes_of);
    let bytes_saved = |saved: &_| stage.sizes().map_or(0, |sizes| sizes.saved_bytes(saved)) as f64;
    let selected = match stage.selective() {
        Some(selective) => {
            let saved = stage.recompute(&weights, micro, x.clone())?;
            bytes_saved(&selective.select(saved))
        }
        None => input,
    };
    let (output, saved) = stage.forward(&weights, micro, x)?;
    let (y, dy) = match output {
        Output::Activation(y) => (y.clone(), device.zeros(&device.shape(&y))?),
        Output::Loss { loss, grad } => (loss, grad),
    };
    let (saved_bytes, output) = (bytes_saved(&saved), bytes_of(&dy));
    let (dx, deferred) = stage.backward_input(&weights, micro, saved, dy)?;
    let deferred_bytes = stage.sizes().map_or(0, |sizes| sizes.deferred_bytes(&deferred)) as f64;
    let gradient = dx.as_ref().map_or(0.0, bytes_of);
    stage.backward_weight(micro, deferred, &mut gradients)?;
    let of_sample = |bytes: f64| bytes / n_samples as f64;
    let bytes = StageBytes {
        saved: of_sample(saved_bytes),
        selected: of_sample(selected),
        input: of_sample(input),
        deferred: of_sample(deferred_bytes),
        output: of_sample(output),
        gradient: of_sample(gradient),
        past: 0.0,
        forward: of_sample(saved_bytes + output),
        recompute: of_sample(saved_bytes),
        restore: of_sample(saved_bytes - selected).max(0.0),
        backward: of_sample(deferred_bytes + gradient),
        backward_input: of_sample(deferred_bytes + gradient),
        backward_weight: 0.0,
    };
    Ok((bytes, y))
}

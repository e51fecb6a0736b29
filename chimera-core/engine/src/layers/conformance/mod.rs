//! The conformance suite for implementations of [`Layers`], ours or a third party's.
//!
//! ```
//! use chimera_engine::device::reference::Reference;
//! use chimera_engine::layers::conformance;
//!
//! conformance::run(&Reference, 1e-6);
//! ```
//!
//! See [`device::conformance`](crate::device::conformance) for what a trial checks, and for the
//! functions that are not layers.

mod attention;
mod dense;
mod norm;
mod pointwise;

use super::Layers;
use crate::device::conformance::trials::Trials;
use crate::device::conformance::{Case, Outcome, run_cases};

/// Runs every case.
///
/// # Panics
/// If any case fails or its relative error exceeds `tolerance`; the message lists all of them.
pub fn run<D: Layers>(device: &D, tolerance: f64) {
    run_rounded(device, tolerance, |x| x);
}

/// [`run`] with operands rounded first, to the precision of the device's activations.
///
/// # Panics
/// Like [`run`].
pub fn run_rounded<D: Layers>(device: &D, tolerance: f64, round: fn(f32) -> f32) {
    run_cases(device, cases_of(device), tolerance, round);
}

/// Returns the [`cases`] of the functions that `device` implements.
pub fn cases_of<D: Layers>(device: &D) -> Vec<Case<D>> {
    let has = |case: &Case<D>| device.llama().is_some() || !LLAMA.contains(&case.name);
    cases().into_iter().filter(has).collect()
}

/// Cases of functions that [a device may lack](Layers::llama).
const LLAMA: [&str; 9] = [
    "rms_norm",
    "rms_norm_dx",
    "rms_norm_dw",
    "gated",
    "gated_dx",
    "rotary",
    "grouped_attention",
    "grouped_attention_dx",
    "attention_after",
];

/// Returns one case per function of [`Layers`], in order, and one for the head of a model, in which
/// several functions work together.
pub fn cases<D: Layers>() -> Vec<Case<D>> {
    let table: [(&'static str, fn(&mut Trials<'_, D>) -> Outcome); 26] = [
        ("embedding", dense::embedding),
        ("embedding_dw", dense::embedding_dw),
        ("linear", dense::linear),
        ("linear_dx", dense::linear_dx),
        ("linear_dw", dense::linear_dw),
        ("layer_norm", norm::layer_norm),
        ("layer_norm_dx", norm::layer_norm_dx),
        ("layer_norm_dw", norm::layer_norm_dw),
        ("activation", pointwise::activation),
        ("activation_dx", pointwise::activation_dx),
        ("rms_norm", norm::rms_norm),
        ("rms_norm_dx", norm::rms_norm_dx),
        ("rms_norm_dw", norm::rms_norm_dw),
        ("gated", pointwise::gated),
        ("gated_dx", pointwise::gated_dx),
        ("rotary", attention::rotary),
        ("dropout", pointwise::dropout),
        ("attention", attention::attention),
        ("attention_dx", attention::attention_dx),
        ("grouped_attention", attention::grouped_attention),
        ("grouped_attention_dx", attention::grouped_attention_dx),
        ("attention_after", attention::attention_after),
        ("attention_slice", attention::attention_slice),
        ("attention_slice_dx", attention::attention_slice_dx),
        ("cross_entropy", norm::cross_entropy),
        ("head", norm::head),
    ];
    table.into_iter().map(|(name, trials)| Case { name, trials }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::reference::Reference;

    #[test]
    fn reference_conforms() {
        run(&Reference, 1e-7);
    }
}

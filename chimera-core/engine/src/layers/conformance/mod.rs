//! The suite that every implementation of [`Layers`] calls, ours or a third party's.
//!
//! ```
//! use chimera_engine::device::reference::Reference;
//! use chimera_engine::layers::conformance;
//!
//! conformance::run(&Reference, 1e-6);
//! ```
//!
//! What a trial is says [`device::conformance`](crate::device::conformance), which tries the functions below layers.

mod attention;
mod dense;
mod norm;
mod pointwise;

use super::Layers;
use crate::device::conformance::trials::Trials;
use crate::device::conformance::{Case, Outcome, run_cases};

/// Tries every case.
///
/// # Panics
/// If any fails or its relative error exceeds `tolerance`, with all that do.
pub fn run<D: Layers>(device: &D, tolerance: f64) {
    run_rounded(device, tolerance, |x| x);
}

/// [`run`] on operands that are rounded first: to what the device keeps of activations, if that is less than f32.
///
/// # Panics
/// As [`run`].
pub fn run_rounded<D: Layers>(device: &D, tolerance: f64, round: fn(f32) -> f32) {
    run_cases(device, cases_of(device), tolerance, round);
}

/// The [`cases`] of those functions that `device` has.
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

/// One case per function of [`Layers`], in its order, and the head of a model, where several work together.
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

//! Draws of the next tokens of texts.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::sampling::{Sampling, draw};

/// The reason that a text has no next token.
pub(super) const OVERFLOWS: &str =
    "what comes next has no probability: the model overflows on this text";

/// Returns the draws of the text with this index among the prompts.
pub(super) fn draws_of(seed: u64, place: usize) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(place as u64);
    rng
}

/// Draws the next token of a text; `None` if its logits are no numbers.
pub(super) fn next_id(logits: &[f32], how: &Sampling, rng: &mut ChaCha8Rng) -> Option<u32> {
    let is_number = |logit: &f32| *logit < f32::INFINITY; // false for NaN too
    let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    logits.iter().all(is_number).then(|| draw(logits, how, uniform))
}

impl Sampling {
    /// Returns the most tokens that the next one follows from, in a model of this context.
    pub(super) fn window_of(&self, context: usize) -> usize {
        self.window.unwrap_or(context).clamp(1, context)
    }
}

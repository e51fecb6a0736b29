//! Shapes of models, drawn from a seed and the number of a case.

use std::fmt;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Widths, none of which a profile measures.
const HIDDEN: [usize; 9] = [96, 160, 192, 224, 288, 320, 384, 448, 576];
/// Features of a head.
const HEAD_DIMS: [usize; 3] = [16, 32, 64];
/// Tokens of a sample.
const CONTEXTS: [usize; 5] = [48, 96, 128, 192, 320];
/// The number of bytes, and larger vocabularies of which a text of bytes uses the first ids.
const VOCABS: [usize; 3] = [256, 700, 3000];
/// Schedules of two workers: one with two pipes, some with several stages per worker or split
/// backwards.
const SCHEDULES: [&str; 6] = ["1f1b", "chimera", "gpipe", "zb-h1", "interleaved", "chimera"];
/// The operations of a step: long enough to be timed, short enough for many of them.
const FLOPS: std::ops::Range<f64> = 2e10..1.2e11;

/// A training of some steps.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) model: &'static str,
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) context: usize,
    pub(super) vocab: usize,
    pub(super) micro_batch_size: usize,
    pub(super) micro_batches: usize,
    pub(super) depth: usize,
    pub(super) schedule: &'static str,
}

impl Shape {
    /// The shape of a case; every second one has two workers.
    pub(super) fn of_case(seed: u64, case: u64) -> Shape {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(case);
        loop {
            let shape = Shape::draw(&mut random, 1 + (case % 2) as usize);
            if FLOPS.contains(&shape.flops()) {
                return shape;
            }
        }
    }

    fn draw(random: &mut ChaCha8Rng, depth: usize) -> Shape {
        fn one<T: Copy>(all: &[T], random: &mut ChaCha8Rng) -> T {
            *all.choose(random).expect("something to choose from")
        }
        let (hidden, head_dim) = (one(&HIDDEN, random), one(&HEAD_DIMS, random));
        Shape {
            model: one(&["gpt2", "llama"], random),
            // Two stages per worker for the schedules that have them.
            layers: random.random_range(2..=5) * depth,
            hidden,
            heads: (1..=(hidden / head_dim).max(1))
                .rev()
                .find(|n| hidden % (2 * n) == 0)
                .unwrap_or(1),
            context: one(&CONTEXTS, random),
            vocab: one(&VOCABS, random),
            micro_batch_size: random.random_range(1..=6),
            micro_batches: 2 * random.random_range(1..=4),
            depth,
            schedule: if depth == 1 { "1f1b" } else { one(&SCHEDULES, random) },
        }
    }

    /// Approximate operations of a step.
    fn flops(&self) -> f64 {
        let Shape { layers, hidden, context, vocab, micro_batch_size, micro_batches, .. } = *self;
        let params = (12 * layers * hidden + vocab) * hidden;
        6.0 * (params * context * micro_batch_size * micro_batches) as f64
    }

    /// Samples per step.
    pub(super) fn batch(&self) -> usize {
        self.micro_batch_size * self.micro_batches
    }

    /// The options of the model.
    pub(super) fn model_options(&self) -> Vec<String> {
        let Shape { model, layers, hidden, heads, context, vocab, .. } = self;
        let mut options = format!(
            "--model {model} --layers {layers} --hidden {hidden} --heads {heads} --context {context} --vocab {vocab}"
        );
        if *model == "llama" {
            // Half as many key and value heads, if that is a whole number.
            let kv_heads = if heads.is_multiple_of(2) { heads / 2 } else { *heads };
            options.push_str(&format!(" --kv-heads {kv_heads}"));
        }
        options.split_whitespace().map(String::from).collect()
    }

    /// The options of a training.
    pub(super) fn options(&self) -> Vec<String> {
        let Shape { micro_batch_size, micro_batches, depth, schedule, .. } = self;
        let options = format!(
            "--schedule {schedule} --depth {depth} --micro-batches {micro_batches} --micro-batch-size {micro_batch_size}"
        );
        let mut all = self.model_options();
        all.extend(options.split_whitespace().map(String::from));
        all
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { model, layers, hidden, heads, context, vocab, .. } = self;
        write!(f, "{model}, {layers} x {hidden}, {heads} heads, {context} tokens, {vocab} ids")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_follows_from_its_seed_and_heads_divide_the_width() {
        for case in 0..200 {
            let [a, b] = [(); 2].map(|()| Shape::of_case(7, case));
            assert_eq!(a.options(), b.options());
            assert_eq!(a.hidden % (2 * a.heads), 0, "{a}");
            assert_eq!(a.depth, 1 + (case % 2) as usize);
        }
        let other = Shape::of_case(8, 0);
        assert_ne!(Shape::of_case(7, 0).options(), other.options());
    }
}

//! Random draws that follow from a seed and the number of a case.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Numbers at the limits of the allowed range, or beyond: small ones that are quickly done, others
/// that exceed any machine.
const NUMBERS: [&str; 24] = [
    "0", "1", "2", "3", "5", "7", "-1", "-0", "0.5", "1e-30", "1e308", "-1e308", "nan", "inf",
    "1e400", "4294967295", "4294967296", "9223372036854775807", "18446744073709551616", "1e30",
    "00", "+3", "0x10", "3.",
];

/// Words that are no numbers.
const WORDS: [&str; 26] = [
    "", " ", "x", "true", "false", "auto", "none", "full", "é\u{202e}", "a b", "-", "--", ".",
    "..", "/", "missing/x", "/dev/null", "/dev/zero", "/dev/full", "5..3", "0..2", "1,2,3", "%s%n",
    "10MiB", "127.0.0.1:0", "$(x)",
];

/// The draws of one case.
pub(super) struct Random(ChaCha8Rng);

impl Random {
    pub(super) fn of_case(seed: u64, case: u64) -> Random {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(case);
        Random(rng)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }

    /// Returns true once in `n` times.
    pub(super) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.0.random()
    }

    /// Draws one of several elements. The list must not be empty.
    pub(super) fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all.choose(&mut self.0).expect("something to choose from").clone()
    }

    pub(super) fn weighted<T: Clone>(&mut self, all: &[T], weight: impl Fn(&T) -> u64) -> T {
        let drawn = all.choose_weighted(&mut self.0, |one| weight(one));
        drawn.expect("weights above zero").clone()
    }

    pub(super) fn number(&mut self) -> String {
        self.of(&NUMBERS).to_owned()
    }

    /// A number or a word, sometimes a long one.
    pub(super) fn value(&mut self) -> String {
        match self.below(20) {
            0 => "9".repeat(1 + self.below(2000)),
            1 => "[".repeat(1 + self.below(2000)),
            2..=10 => self.number(),
            _ => self.of(&WORDS).to_owned(),
        }
    }
}

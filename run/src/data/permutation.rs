//! The order of an epoch: a keyed permutation of any number of samples, without a table.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Rounds of the network. Four would do for a pseudorandom permutation (Luby & Rackoff, 1988), but
/// small halves mix worse.
const ROUNDS: usize = 8;

/// A Feistel network over the smallest even number of bits that holds all numbers below `n`. It is
/// applied repeatedly until the result is below `n` (Black & Rogaway, 2002): at most four times on
/// average.
pub(super) struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Makes the permutation of `0..n` for an epoch.
    pub(super) fn new(n: u64, seed: u64, epoch: u64) -> Permutation {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(epoch);
        let keys = std::array::from_fn(|_| rng.next_u64());
        Permutation { n, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// Returns the image of `index`, which is below `n`.
    pub(super) fn at(&self, index: u64) -> u64 {
        let mut to = self.walk(index);
        while to >= self.n {
            to = self.walk(to);
        }
        to
    }

    fn walk(&self, x: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let halves = (x >> self.half_bits, x & mask);
        let (left, right) = self.keys.iter().fold(halves, |(left, right), key| {
            (right, left ^ (mix(right ^ key) >> (u64::BITS - self.half_bits)))
        });
        left << self.half_bits | right
    }
}

/// The finaliser of SplitMix64 (Steele, Lea & Flood, 2014): every bit of the result depends on all of `x`.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(n, seed, epoch);
        (0..n).map(|index| permutation.at(index)).collect()
    }

    proptest! {
        #[test]
        fn each_number_comes_once(n in 1u64..3000, seed in any::<u64>(), epoch in any::<u64>()) {
            let mut order = order(n, seed, epoch);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..n));
        }

        #[test]
        fn seeds_and_epochs_have_orders_of_their_own(
            n in 64u64..3000, seed in any::<u64>(), epoch in 0u64..1 << 40,
        ) {
            let first = order(n, seed, epoch);
            prop_assert_ne!(&first, &order(n, seed, epoch + 1));
            prop_assert_ne!(&first, &order(n, seed ^ 1, epoch));
        }

        #[test]
        fn large_numbers_stay_in_range(n in 1u64..=1 << 62, x in any::<u64>(), seed in any::<u64>()) {
            prop_assert!(Permutation::new(n, seed, 0).at(x % n) < n);
        }
    }

    /// Every number is equally likely at every position, even for few numbers.
    #[test]
    fn orders_have_no_favourites() {
        for n in [2, 5, 16] {
            let mut counts = vec![0; (n * n) as usize];
            let n_epochs = 400 * n;
            for epoch in 0..n_epochs {
                for (place, number) in order(n, 9, epoch).into_iter().enumerate() {
                    counts[place * n as usize + number as usize] += 1;
                }
            }
            assert!(counts.iter().all(|count| (300..=500).contains(count)), "{n}: {counts:?}");
        }
    }
}

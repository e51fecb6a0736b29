//! Dropout, computed from numbers only, so that no mask is ever stored or sent.

/// Number of values that an element's random bits can have: the resolution of the rate.
const STEPS: f64 = 65_536.0;

/// A choice of elements to drop (Srivastava et al., 2014). It is reproducible everywhere: element
/// `i` of a tensor, row-major, is element `first + i` of the stream `key`.
///
/// A micro-batch that is split into units, recomputed or moved to another worker therefore sees the
/// same choice, as long as `first` counts from the same place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Dropout {
    /// Probability of being dropped, at least 0 and below 1.
    pub rate: f64,
    /// Key of the random stream, see [`threefry`].
    pub key: [u32; 2],
    /// Number of the tensor's first element in the stream.
    pub first: u64,
}

impl Dropout {
    /// Drops nothing.
    pub const NONE: Dropout = Dropout { rate: 0.0, key: [0; 2], first: 0 };

    /// The stream of `layer` in step `step` of the run with `seed`, from its element `first` on.
    pub fn new(rate: f64, seed: u64, step: u64, layer: u64, first: u64) -> Dropout {
        let key = [seed, step, layer].into_iter().fold([0; 2], |key, n| threefry(key, words(n)));
        Dropout { rate, key, first }
    }

    /// An element is kept if its random bits are not below this: the rate, in steps of 2^-16.
    #[inline(always)]
    pub fn threshold(&self) -> u16 {
        (self.rate * STEPS).round().min(STEPS - 1.0) as u16
    }

    /// Factor of kept elements, which preserves the expectation.
    pub fn scale(&self) -> f64 {
        STEPS / (STEPS - f64::from(self.threshold()))
    }

    /// Returns true if element `i` of the tensor is kept.
    #[inline(always)]
    pub fn keeps(&self, i: u64) -> bool {
        self.bits(self.first.wrapping_add(i)) >= self.threshold()
    }

    /// The random bits of an element of the stream: half a word, the lower half for even elements.
    #[inline(always)]
    fn bits(&self, element: u64) -> u16 {
        (self.word(element >> 1) >> (16 * (element & 1))) as u16
    }

    /// A random word of the stream: words `2 n` and `2 n + 1` form block `n`.
    #[inline(always)]
    fn word(&self, number: u64) -> u32 {
        threefry(self.key, words(number >> 1))[(number & 1) as usize]
    }

    /// Fills `into` with random words, from the word of the tensor's first element on. Each block
    /// is computed once. A word belongs to two elements of the stream: the even one has the lower
    /// half.
    #[inline(always)]
    pub fn fill(&self, mut into: &mut [u32]) {
        let mut at = self.first >> 1;
        if at & 1 == 1 && !into.is_empty() {
            into[0] = self.word(at);
            (at, into) = (at.wrapping_add(1), &mut into[1..]);
        }
        let [low, high] = words(at >> 1);
        // The carry without a branch, so that the loop vectorizes.
        let block = |nth: u32| {
            let block = low.wrapping_add(nth);
            threefry(self.key, [block, high.wrapping_add(u32::from(block < low))])
        };
        // Two blocks at a time: the rounds of one fill the latencies of the other.
        let (fours, rest) = into.as_chunks_mut::<4>();
        at = at.wrapping_add(4 * fours.len() as u64);
        for (nth, four) in (0..).zip(fours) {
            let [[a, b], [c, d]] = [block(2 * nth), block(2 * nth + 1)];
            *four = [a, b, c, d];
        }
        for (i, word) in (0..).zip(rest) {
            *word = self.word(at.wrapping_add(i));
        }
    }

    /// Factor of element `i` of the tensor: 0 if it is dropped.
    #[inline(always)]
    pub fn factor(&self, i: u64) -> f64 {
        if self.keeps(i) { self.scale() } else { 0.0 }
    }
}

/// Block `counter` of the stream `key`: Threefry-2x32 with 13 rounds, the fewest that passed its
/// authors' tests (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"). It needs
/// only additions, rotations and exclusive ors of 32 bits, which every device has.
#[inline(always)]
pub fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let turn = |[a, b]: [u32; 2], by: u32| {
        let sum = a.wrapping_add(b);
        [sum, b.rotate_left(by) ^ sum]
    };
    let keys = [key[0], key[1], 0x1BD1_1BDA ^ key[0] ^ key[1]];
    let mut pair = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for four in 0..3 {
        let [a, b] = ROTATIONS[four % 2].into_iter().fold(pair, turn);
        let (to_a, to_b) =
            (keys[(four + 1) % 3], keys[(four + 2) % 3].wrapping_add(four as u32 + 1));
        pair = [a.wrapping_add(to_a), b.wrapping_add(to_b)];
    }
    turn(pair, ROTATIONS[1][0])
}

/// Splits into words, the low one first.
#[inline(always)]
fn words(n: u64) -> [u32; 2] {
    [n as u32, (n >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threefry_gives_the_published_blocks() {
        // The known answers of Random123 for `threefry2x32 13`.
        let (ones, pi) = ([u32::MAX; 2], [0x243f_6a88, 0x85a3_08d3]);
        assert_eq!(threefry([0; 2], [0; 2]), [0x9d1c_5ec6, 0x8bd5_0731]);
        assert_eq!(threefry(ones, ones), [0xfd36_d048, 0x2d17_272c]);
        assert_eq!(threefry([0x1319_8a2e, 0x0370_7344], pi), [0xba3e_4725, 0xf27d_669e]);
    }

    #[test]
    fn as_many_are_dropped_as_asked() {
        for rate in [0.0, 0.1, 0.5, 0.9] {
            let by = Dropout::new(rate, 7, 3, 2, 0);
            let n = 100_000;
            let dropped = (0..n).filter(|&i| !by.keeps(i)).count() as f64 / n as f64;
            let deviation = (rate * (1.0 - rate) / n as f64).sqrt();
            assert!((dropped - rate).abs() <= 4.0 * deviation, "{dropped} of {rate}");
        }
    }

    #[test]
    fn seed_step_and_layer_choose_and_first_moves_along() {
        let kept = |by: Dropout| (0..64).map(|i| by.keeps(i)).collect::<Vec<_>>();
        let by = Dropout::new(0.5, 1, 2, 3, 4);
        for other in [
            Dropout::new(0.5, 0, 2, 3, 4),
            Dropout::new(0.5, 1, 0, 3, 4),
            Dropout::new(0.5, 1, 2, 0, 4),
            Dropout::new(0.5, 2, 1, 3, 4),
        ] {
            assert_ne!(kept(other), kept(by));
        }
        let later = Dropout { first: by.first + 10, ..by };
        assert!((0..100).all(|i| later.keeps(i) == by.keeps(i + 10)));
        // Past the end of the lower word too.
        let far = Dropout { first: u64::from(u32::MAX), ..by };
        assert_ne!(kept(Dropout { first: 0, ..far }), kept(Dropout { first: 1 << 32, ..far }));
    }

    #[test]
    fn words_in_a_row_are_those_of_the_elements() {
        // Starts at each position in a block, and before a carry of the block number.
        for first in [0, 5, 7, (1 << 34) - 6, (1 << 34) - 12] {
            let by = Dropout::new(0.3, 1, 2, 3, first);
            for n in [0, 1, 2, 9, 20] {
                let mut words = vec![0; n];
                by.fill(&mut words);
                let each = (0..n as u64).map(|i| {
                    let element = (first & !1) + 2 * i;
                    u32::from(by.bits(element)) | u32::from(by.bits(element + 1)) << 16
                });
                assert!(words.into_iter().eq(each), "{n} from {first}");
            }
        }
    }

    #[test]
    fn the_expectation_stays_and_something_is_kept_at_every_rate() {
        for rate in [1e-9, 1e-5, 0.1, 0.5, 0.999_999, 1.0 - 1e-15] {
            let by = Dropout::new(rate, 1, 2, 3, 4);
            let kept = 1.0 - f64::from(by.threshold()) / STEPS;
            assert!(kept > 0.0 && (kept * by.scale() - 1.0).abs() < 1e-12, "{rate}");
            assert!((1.0 - kept - rate).abs() <= 1.0 / STEPS, "{rate}");
        }
    }
}

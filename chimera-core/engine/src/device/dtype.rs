//! The type of a tensor's elements.

use super::packed;

/// The type of a tensor's elements, and their layout in words of four bytes, the unit of messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 single precision, one to a word.
    #[default]
    F32,
    /// The upper half of an f32, two elements to a word, the first one in the lower half.
    Bf16,
    /// IEEE 754 double precision, two words to an element, the lower half first.
    F64,
    /// A [packed](super::Packed) matrix, whose words say how many elements they hold.
    Packed,
}

impl Dtype {
    /// All types with their codes in messages.
    const CODES: [(u16, Dtype); 4] =
        [(0, Dtype::F32), (1, Dtype::Bf16), (2, Dtype::F64), (3, Dtype::Packed)];

    /// Code of the type in messages.
    pub fn code(self) -> u16 {
        Dtype::CODES.iter().find(|(_, dtype)| *dtype == self).map_or(0, |(code, _)| *code)
    }

    /// Returns the type with this code, if there is one.
    pub fn from_code(code: u16) -> Option<Dtype> {
        Dtype::CODES.iter().find(|(known, _)| *known == code).map(|(_, dtype)| *dtype)
    }

    /// Number of words that hold `n_elements`; `None` if it overflows or depends on the words.
    pub fn n_words(self, n_elements: usize) -> Option<usize> {
        match self {
            Dtype::F32 => Some(n_elements),
            Dtype::Bf16 => Some(n_elements.div_ceil(2)),
            Dtype::F64 => n_elements.checked_mul(2),
            Dtype::Packed => None,
        }
    }

    /// Returns true if all elements are finite. Branch-free, so that the loop vectorizes.
    pub fn is_finite(self, words: &[f32]) -> bool {
        const SIGN: u32 = 1 << 31;
        // Adding one to an exponent of all ones overflows into the sign.
        let overflow =
            |bits: u32, mantissa_digits: u32| (bits & !SIGN) + (1 << (mantissa_digits - 1));
        let single = |word: &f32| overflow(word.to_bits(), f32::MANTISSA_DIGITS);
        let any = |all: u32, one: u32| all | one;
        let overflows = match self {
            Dtype::F32 => words.iter().map(single).fold(0, any),
            Dtype::Bf16 => words
                .iter()
                .flat_map(|word| halves(word.to_bits()))
                .fold(0, |all, half| any(all, single(&half))),
            Dtype::F64 => {
                let upper =
                    |pair: &[f32; 2]| overflow(pair[1].to_bits(), f64::MANTISSA_DIGITS - u32::BITS);
                words.as_chunks().0.iter().map(upper).fold(0, any)
            }
            Dtype::Packed => 0,
        };
        overflows & SIGN == 0
    }

    /// Packs bytes of elements, in native byte order, into words, the last padded with zeros.
    pub fn words(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
        bytes.chunks(WORD).map(|chunk| {
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            f32::from_ne_bytes(word)
        })
    }

    /// Packs f32 values into words, rounding each to the nearest value of the type.
    pub fn of_f32(self, values: Vec<f32>) -> Vec<f32> {
        match self {
            Dtype::F32 | Dtype::Packed => values,
            Dtype::Bf16 => values.chunks(2).map(rounded_halves).collect(),
            Dtype::F64 => values.iter().flat_map(|x| pair(f64::from(*x).to_bits())).collect(),
        }
    }

    /// Unpacks the first `n_elements` of `words` as f32.
    pub fn to_f32(self, words: Vec<f32>, n_elements: usize) -> Vec<f32> {
        let mut values: Vec<f32> = match self {
            Dtype::F32 => words,
            Dtype::Bf16 => words.iter().flat_map(|word| halves(word.to_bits())).collect(),
            Dtype::F64 => words.as_chunks().0.iter().map(|pair| double(*pair) as f32).collect(),
            Dtype::Packed => packed::values(&words),
        };
        values.truncate(n_elements);
        values
    }
}

/// Elements of a tensor on the host, row-major, packed into words.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Elements {
    /// Type of the elements.
    pub dtype: Dtype,
    /// The words that hold the elements.
    pub words: Vec<f32>,
}

impl Elements {
    /// Returns the `n` elements as f32.
    pub fn to_f32(self, n: usize) -> Vec<f32> {
        self.dtype.to_f32(self.words, n)
    }

    /// Returns the `n` elements as f64, exactly for every type.
    pub fn to_f64(self, n: usize) -> Vec<f64> {
        match self.dtype {
            Dtype::F64 => self.words.as_chunks().0.iter().map(|pair| double(*pair)).collect(),
            _ => self.to_f32(n).into_iter().map(f64::from).collect(),
        }
    }

    /// Stores values exactly if `dtype` is f64; otherwise rounds them to f32.
    pub fn of_f64(dtype: Dtype, values: &[f64]) -> Elements {
        match dtype {
            Dtype::F64 => {
                let words = values.iter().flat_map(|x| pair(x.to_bits())).collect();
                Elements { dtype, words }
            }
            _ => values.iter().map(|x| *x as f32).collect::<Vec<_>>().into(),
        }
    }
}

fn pair(bits: u64) -> [f32; 2] {
    [bits as u32, (bits >> u32::BITS) as u32].map(f32::from_bits)
}

impl From<Vec<f32>> for Elements {
    fn from(words: Vec<f32>) -> Elements {
        Elements { dtype: Dtype::F32, words }
    }
}

const WORD: usize = size_of::<f32>();

/// A word of one or two numbers, rounded to bf16: to nearest, ties to even.
fn rounded_halves(values: &[f32]) -> f32 {
    let upper = |value: &f32| {
        let bits = value.to_bits();
        let is_even = bits >> u16::BITS & 1;
        let nearest = bits.wrapping_add(0x7FFF + is_even) >> u16::BITS;
        // Rounding could turn a NaN into an infinity.
        let quiet = bits >> u16::BITS | 1 << 6;
        if value.is_nan() { quiet } else { nearest }
    };
    f32::from_bits(upper(&values[0]) | values.get(1).map_or(0, upper) << u16::BITS)
}

fn halves(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

fn double([lower, upper]: [f32; 2]) -> f64 {
    f64::from_bits(u64::from(lower.to_bits()) | u64::from(upper.to_bits()) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_comes_back_by_its_code() {
        for (code, dtype) in Dtype::CODES {
            assert_eq!((dtype.code(), Dtype::from_code(code)), (code, Some(dtype)));
        }
        assert_eq!(Dtype::from_code(4), None);
    }

    /// The words are little-endian, as are all machines that this is built for.
    #[test]
    fn words_hold_elements() {
        let exact = [1.5f32, -0.25, 3.0];
        let bf16 = exact.map(|x| (x.to_bits() >> 16) as u16);
        let bytes: Vec<u8> = bf16.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let words: Vec<f32> = Dtype::words(&bytes).collect();
        assert_eq!(Some(words.len()), Dtype::Bf16.n_words(3));
        assert_eq!(Dtype::Bf16.to_f32(words, 3), exact);
        let bytes: Vec<u8> = exact.iter().flat_map(|x| f64::from(*x).to_ne_bytes()).collect();
        let words: Vec<f32> = Dtype::words(&bytes).collect();
        assert_eq!(Some(words.len()), Dtype::F64.n_words(3));
        assert_eq!(Dtype::F64.to_f32(words, 3), exact);
        assert_eq!(Dtype::F64.n_words(usize::MAX), None);
    }

    #[test]
    fn what_is_not_finite_is_found_in_every_type() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for x in [[0.0, f64::MAX], [bad, 1.0], [-1.0, bad]] {
                let is_finite = x[0].is_finite() && x[1].is_finite();
                let words: Vec<f32> = x
                    .iter()
                    .flat_map(|x| Dtype::words(&x.to_ne_bytes()).collect::<Vec<_>>())
                    .collect();
                assert_eq!(Dtype::F64.is_finite(&words), is_finite, "{x:?}");
                let singles = x.map(|x| if x == f64::MAX { f32::MAX } else { x as f32 });
                assert_eq!(Dtype::F32.is_finite(&singles), is_finite, "{x:?}");
                let halves: Vec<u8> = singles
                    .iter()
                    .flat_map(|x| ((x.to_bits() >> 16) as u16).to_ne_bytes())
                    .collect();
                let words: Vec<f32> = Dtype::words(&halves).collect();
                assert_eq!(Dtype::Bf16.is_finite(&words), is_finite, "{x:?}");
            }
        }
    }
}

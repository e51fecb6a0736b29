//! The rate of a device by the size of a micro-batch.

/// Floating-point operations per second, fewer in small micro-batches.
///
/// A micro-batch of `n` tokens takes as long as `n + half` tokens would at the full rate (Hockney
/// and Jesshope, *Parallel Computers*, 1981: r_inf and n_1/2).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    most: f64,
    half: f64,
}

impl From<f64> for Rate {
    /// Makes a rate that holds for every size.
    fn from(flops: f64) -> Rate {
        Rate::with_half(flops, 0.0)
    }
}

impl Rate {
    /// A rate of `most` for large micro-batches, half of which is reached with `half` tokens.
    pub fn with_half(most: f64, half: f64) -> Rate {
        Rate { most, half }
    }

    /// Returns the rate with a micro-batch of some tokens.
    pub fn at(self, tokens: f64) -> f64 {
        self.most * tokens / (tokens + self.half)
    }

    /// Returns a rate of which this is `1 / part`.
    pub fn times(self, part: f64) -> Rate {
        Rate { most: self.most * part, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_micro_batch_takes_longer_for_each_token() {
        let rate = Rate::with_half(8e12, 512.0);
        assert_eq!([512.0, 1536.0].map(|tokens| rate.at(tokens)), [4e12, 6e12]);
        assert_eq!(rate.times(0.5).at(512.0), 2e12);
        assert_eq!(Rate::from(8e12).at(1.0), 8e12);
    }
}

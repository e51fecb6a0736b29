//! Chooses the dataset of each sample when several are mixed by weights.

/// The fixed-point number for a share of 1.
const ONE: u128 = 1 << 53;

/// A mixture of datasets. Among the first `n` samples, for any `n`, each dataset has its share to
/// within a few samples, so every step sees all datasets in proportion. Nothing is random, and
/// nothing is counted from the start.
///
/// The first dataset takes its share of all samples, the second its share of those that remain, and
/// so on.
#[derive(Debug)]
pub(super) struct Mixture {
    /// The shares of all datasets but the last, which takes the rest.
    shares: Vec<u64>,
}

impl Mixture {
    /// Makes a mixture of as many datasets as there are weights.
    pub(super) fn new(weights: &[f64]) -> Mixture {
        let mut left: f64 = weights.iter().sum();
        let share = |weight: &f64| {
            let share = (weight / left).min(1.0);
            left -= weight;
            (share * ONE as f64) as u64
        };
        let all_but_last = weights.len().saturating_sub(1);
        Mixture { shares: weights[..all_but_last].iter().map(share).collect() }
    }

    /// Returns the dataset of a sample, and the sample's index among those from this dataset.
    pub(super) fn locate(&self, sample: u64) -> (usize, u64) {
        let mut sample = sample;
        for (dataset, share) in self.shares.iter().enumerate() {
            let before = taken(u128::from(sample), *share);
            if taken(u128::from(sample) + 1, *share) > before {
                return (dataset, before);
            }
            sample -= before;
        }
        (self.shares.len(), sample)
    }

    /// Returns the number of samples from each dataset among the first `n_samples`.
    pub(super) fn counts(&self, n_samples: u64) -> Vec<u64> {
        let mut left = n_samples;
        let mut counts = Vec::with_capacity(self.shares.len() + 1);
        for share in &self.shares {
            counts.push(taken(u128::from(left), *share));
            left -= counts[counts.len() - 1];
        }
        counts.push(left);
        counts
    }
}

/// Returns a share of the first `n` samples, rounded.
fn taken(n: u128, share: u64) -> u64 {
    ((n * u128::from(share) + ONE / 2) / ONE) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn datasets_take_turns() {
        let order = |weights: &[f64]| {
            let mixture = Mixture::new(weights);
            (0..12).map(|sample| mixture.locate(sample).0).collect::<Vec<_>>()
        };
        assert_eq!(order(&[1.0]), [0; 12]);
        assert_eq!(order(&[0.5, 0.5]), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(order(&[0.75, 0.25]), [0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(order(&[0.5, 0.25, 0.25]), [0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2]);
    }

    proptest! {
        /// Each dataset gives its samples in turn, as often as its weight requires.
        #[test]
        fn samples_follow_the_weights(weights in prop::collection::vec(0.01f64..1.0, 1..6), n in 1u64..2000) {
            let sum: f64 = weights.iter().sum();
            let weights: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
            let mixture = Mixture::new(&weights);
            let mut counts = vec![0; weights.len()];
            for sample in 0..n {
                let (dataset, number) = mixture.locate(sample);
                prop_assert_eq!(number, counts[dataset]);
                counts[dataset] += 1;
            }
            prop_assert_eq!(&mixture.counts(n), &counts);
            for (count, weight) in counts.iter().zip(&weights) {
                prop_assert!((*count as f64 - weight * n as f64).abs() < 2.0, "{count} of {n} for {weight}");
            }
        }

        #[test]
        fn large_numbers_have_their_dataset(weight in 0.0f64..=1.0, sample in any::<u64>()) {
            let (dataset, number) = Mixture::new(&[weight, 1.0 - weight]).locate(sample);
            prop_assert!(dataset < 2 && number <= sample);
        }
    }
}

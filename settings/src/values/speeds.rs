//! Relative speeds of ranks that are not all alike.

use std::fmt;
use std::str::FromStr;

use chimera_core::ids::Rank;

/// The lowest and the highest speed of a rank.
const RANGE: std::ops::RangeInclusive<f64> = 1e-3..=1e3;
/// A measured speed counts as at least this part of the fastest one.
const SLOWEST: f64 = 0.01;

/// The compute speed of each rank relative to speed 1, from rank 0 on; repeated for further ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds(Vec<f64>);

impl Speeds {
    /// Returns the speeds of ranks with these rates of work, to three digits: the fastest has 1.
    pub fn measured(rates: &[f64]) -> Speeds {
        let fastest = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let speed = |rate: &f64| ((rate / fastest).max(SLOWEST) * 1e3).round() / 1e3;
        Speeds(rates.iter().map(speed).collect())
    }

    /// Number of given speeds.
    pub fn n_said(&self) -> usize {
        self.0.len()
    }

    /// Returns the speeds of only these ranks.
    pub fn of_ranks(&self, ranks: &[Rank]) -> Speeds {
        Speeds(ranks.iter().map(|rank| self.0[rank.index() % self.0.len()]).collect())
    }

    /// Returns the speed of each worker of a pipeline, with `width` pipelines side by side: the
    /// slowest of the ranks that do the same work, since all wait for it.
    pub fn of_workers(&self, depth: usize, width: usize) -> Vec<f64> {
        least_of_workers(&self.0, depth, width)
    }
}

/// Returns the lowest value for each worker of a pipeline among the ranks that are this worker,
/// with `width` pipelines side by side. `of_ranks` starts at rank 0 and repeats for further ranks.
pub fn least_of_workers(of_ranks: &[f64], depth: usize, width: usize) -> Vec<f64> {
    let of_worker = |worker: usize| {
        // Groups beyond the number of values only repeat earlier ones.
        let ranks = (0..width.min(of_ranks.len())).map(|group| group * depth + worker);
        ranks.map(|rank| of_ranks[rank % of_ranks.len()]).fold(f64::INFINITY, f64::min)
    };
    (0..depth).map(of_worker).collect()
}

impl FromStr for Speeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Speeds, String> {
        let speed = |word: &str| match word.trim().parse::<f64>() {
            Ok(speed) if RANGE.contains(&speed) => Ok(speed),
            Ok(_) => {
                let (least, most) = (RANGE.start(), RANGE.end());
                Err(format!("{} is not from {least} to {most}", word.trim()))
            }
            Err(_) => Err(format!("`{}` is no number", word.trim())),
        };
        text.split(',').map(speed).collect::<Result<_, _>>().map(Speeds)
    }
}

impl fmt::Display for Speeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speeds: Vec<String> = self.0.iter().map(f64::to_string).collect();
        write!(f, "{}", speeds.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_as_fast_as_the_slowest_of_its_ranks() {
        let speeds: Speeds = "1, 1,0.5,2".parse().unwrap();
        assert_eq!((speeds.to_string().as_str(), speeds.n_said()), ("1,1,0.5,2", 4));
        assert_eq!(speeds.of_workers(4, 1), [1.0, 1.0, 0.5, 2.0]);
        assert_eq!(speeds.of_workers(2, 2), [0.5, 1.0]);
        assert_eq!(speeds.of_workers(1, 4), [0.5]);
        assert_eq!(speeds.of_ranks(&[0, 2, 7].map(Rank)).to_string(), "1,0.5,2");
        // Further ranks repeat the first ones.
        assert_eq!(speeds.of_workers(4, 64), [1.0, 1.0, 0.5, 2.0]);
        assert_eq!(speeds.of_workers(6, 1), [1.0, 1.0, 0.5, 2.0, 1.0, 1.0]);
        assert_eq!(speeds.of_workers(3, 4), [0.5; 3]);
    }

    #[test]
    fn measured_speeds_are_relative_to_the_fastest() {
        let text = |rates: &[f64]| Speeds::measured(rates).to_string();
        assert_eq!(text(&[3e9, 1e9, 1.0]), "1,0.333,0.01");
        assert_eq!(text(&[0.0, f64::NAN, 2.0]), "0.01,0.01,1");
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        for (text, why) in [
            ("1,0", "0 is not from 0.001 to 1000"),
            ("1,fast", "`fast` is no number"),
            ("", "`` is no number"),
        ] {
            assert_eq!(text.parse::<Speeds>().unwrap_err(), why);
        }
    }
}

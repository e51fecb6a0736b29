//! The weights of a data mixture.

use std::fmt;
use std::str::FromStr;

/// Largest deviation of the sum of weights from 1, since written weights are rounded.
const TOLERANCE: f64 = 1e-6;

/// Weights of a mixture, each above 0, with sum 1.
#[derive(Clone, PartialEq, Debug)]
pub struct DataWeights(Vec<f64>);

impl DataWeights {
    /// Returns the weights.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }
}

impl FromStr for DataWeights {
    type Err = String;

    fn from_str(text: &str) -> Result<DataWeights, String> {
        let weight = |word: &str| match word.trim().parse::<f64>() {
            Ok(weight) if weight > 0.0 && weight.is_finite() => Ok(weight),
            Ok(_) => Err(format!("{} is not above 0", word.trim())),
            Err(_) => Err(format!("`{}` is no number", word.trim())),
        };
        let weights = text.split(',').map(weight).collect::<Result<Vec<f64>, String>>()?;
        let sum: f64 = weights.iter().sum();
        if (sum - 1.0).abs() <= TOLERANCE {
            Ok(DataWeights(weights))
        } else {
            // Twelve digits hide the rounding error of the sum.
            Err(format!("their sum is {}, not 1", (sum * 1e12).round() / 1e12))
        }
    }
}

impl fmt::Display for DataWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights: Vec<String> = self.0.iter().map(f64::to_string).collect();
        write!(f, "{}", weights.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_read_back() {
        for text in ["1", "0.7,0.3", "0.333333,0.333333,0.333334"] {
            assert_eq!(text.parse::<DataWeights>().unwrap().to_string(), text);
        }
        assert_eq!("0.50, 0.5 ".parse::<DataWeights>().unwrap().as_slice(), [0.5, 0.5]);
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        for (text, why) in [
            ("0.7,0.4", "their sum is 1.1, not 1"),
            ("1.2,-0.2", "-0.2 is not above 0"),
            ("1,0", "0 is not above 0"),
            ("nan,1", "nan is not above 0"),
            ("0.7,", "`` is no number"),
            ("half,half", "`half` is no number"),
        ] {
            assert_eq!(text.parse::<DataWeights>().unwrap_err(), why);
        }
    }
}

//! The weights of a mixture of data.

use std::fmt;
use std::str::FromStr;

use super::{Config, SettingsError};

/// How far from 1 the sum of weights may be, which are rounded where they are written.
const TOLERANCE: f64 = 1e-6;

/// Weights of a mixture, each above 0, whose sum is 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Weights(Vec<f64>);

impl Weights {
    /// The weights.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }
}

impl FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Weights, String> {
        let weight = |word: &str| match word.trim().parse::<f64>() {
            Ok(weight) if weight > 0.0 && weight.is_finite() => Ok(weight),
            Ok(_) => Err(format!("{} is not above 0", word.trim())),
            Err(_) => Err(format!("`{}` is no number", word.trim())),
        };
        let weights = text.split(',').map(weight).collect::<Result<Vec<f64>, String>>()?;
        let sum: f64 = weights.iter().sum();
        match (sum - 1.0).abs() <= TOLERANCE {
            true => Ok(Weights(weights)),
            // Twelve digits hide what the sum was rounded by.
            false => Err(format!("their sum is {}, not 1", (sum * 1e12).round() / 1e12)),
        }
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights: Vec<String> = self.0.iter().map(f64::to_string).collect();
        write!(f, "{}", weights.join(","))
    }
}

impl Config {
    /// Refuses weights that are not as many as the files that they weigh.
    pub(super) fn check_weights(&self) -> Result<(), SettingsError> {
        let Some(weights) = &self.data_weights else { return Ok(()) };
        let (n_weights, n_files) = (weights.0.len(), self.data.len());
        if n_weights == n_files {
            return Ok(());
        }
        let message = match n_files {
            0 => "`data-weights` weighs the files of `data`, which names none".into(),
            _ => format!(
                "`data-weights` has {n_weights} weight(s), but `data` names {n_files} file(s): give each file its weight"
            ),
        };
        Err(SettingsError { place: self.origins["data-weights"].to_string(), message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Layers, Nothing};

    #[test]
    fn weights_read_back() {
        for text in ["1", "0.7,0.3", "0.333333,0.333333,0.333334"] {
            assert_eq!(text.parse::<Weights>().unwrap().to_string(), text);
        }
        assert_eq!("0.50, 0.5 ".parse::<Weights>().unwrap().as_slice(), [0.5, 0.5]);
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
            assert_eq!(text.parse::<Weights>().unwrap_err(), why);
        }
    }

    #[test]
    fn each_file_has_its_weight() {
        let refusal = |options: &str| {
            Layers::parse(options).unwrap().resolve(&Nothing).unwrap_err().to_string()
        };
        assert_eq!(
            refusal("--data a b c --data-weights 0.7,0.3"),
            "command line: `data-weights` has 2 weight(s), but `data` names 3 file(s): give each file its weight"
        );
        assert_eq!(
            refusal("--data-weights 1"),
            "command line: `data-weights` weighs the files of `data`, which names none"
        );
        assert_eq!(
            refusal("--data a b --data-weights 0.7,0.4"),
            "command line: `data-weights` is \"0.7,0.4\": their sum is 1.1, not 1"
        );
    }
}

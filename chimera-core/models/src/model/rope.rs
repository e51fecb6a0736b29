//! Rotary position embedding: the angle by which each pair of features rotates at each position.

use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;

use super::error::ModelError;

/// Scaling of the rotary frequencies, so that samples may be longer than those of the first
/// training. The formulas are those of `transformers`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies are divided by the factor (Chen et al., 2023, position interpolation).
    Linear {
        /// The factor by which samples may be longer.
        factor: f64,
    },
    /// The base grows with samples that are longer than `original` (NTK-aware scaling).
    Dynamic {
        /// The factor by which samples may be longer.
        factor: f64,
        /// Tokens of the samples of the first training.
        original: f64,
    },
    /// Low frequencies are divided by the factor, high ones stay, and all cosines and sines are multiplied by
    /// `attention` (Peng et al., 2023, YaRN).
    Yarn {
        /// The factor by which samples may be longer.
        factor: f64,
        /// Tokens of the samples of the first training.
        original: f64,
        /// Turns within `original` tokens above which a frequency stays.
        fast: f64,
        /// Turns within `original` tokens below which a frequency is divided by the factor.
        slow: f64,
        /// Factor of cosines and sines.
        attention: f64,
    },
    /// Low frequencies are divided by the factor, and high ones stay (Llama 3.1).
    Llama3 {
        /// The factor by which samples may be longer.
        factor: f64,
        /// Tokens of the samples of the first training.
        original: f64,
        /// Turns within `original` tokens below which a frequency is divided by the factor.
        low: f64,
        /// Turns within `original` tokens above which a frequency stays.
        high: f64,
    },
}

impl RopeScaling {
    /// Returns YaRN's factor of cosines and sines for a factor of length.
    pub fn yarn_attention(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }

    /// Returns the factor of cosines and sines.
    pub(super) fn factor(&self) -> f64 {
        match *self {
            RopeScaling::Yarn { attention, .. } => attention,
            _ => 1.0,
        }
    }

    /// Returns the context of a model with dynamic scaling, the only one that weight folders hold.
    pub fn dynamic_context(factor: f64, original: f64) -> usize {
        (factor.max(1.0) * original) as usize
    }

    /// Checks that each number is above zero, that `original` is whole, that the high limit is
    /// above the low one, and that the numbers are for this context.
    pub(super) fn validate(&self, context: usize) -> Result<(), ModelError> {
        let (_, values) = self.parts();
        for (name, value) in values {
            if !(value.is_finite() && value > 0.0) {
                return Err(ModelError::RopeScaling { name, value });
            }
            // Folders of weights hold it as an integer.
            if name == "original" && value.fract() != 0.0 {
                return Err(ModelError::RopeOriginal { original: value });
            }
        }
        match *self {
            RopeScaling::Yarn { fast: high, slow: low, .. }
            | RopeScaling::Llama3 { high, low, .. }
                if high <= low =>
            {
                Err(ModelError::RopeOrder { high, low })
            }
            RopeScaling::Dynamic { factor, original } => {
                match RopeScaling::dynamic_context(factor, original) {
                    longest if longest == context => Ok(()),
                    longest => Err(ModelError::DynamicContext { context, longest }),
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns its name, and its numbers by name.
    fn parts(&self) -> (&'static str, Vec<(&'static str, f64)>) {
        match *self {
            RopeScaling::None => ("none", vec![]),
            RopeScaling::Linear { factor } => ("linear", vec![("factor", factor)]),
            RopeScaling::Dynamic { factor, original } => {
                ("dynamic", vec![("factor", factor), ("original", original)])
            }
            RopeScaling::Yarn { factor, original, fast, slow, attention } => (
                "yarn",
                vec![
                    ("factor", factor),
                    ("original", original),
                    ("fast", fast),
                    ("slow", slow),
                    ("attention", attention),
                ],
            ),
            RopeScaling::Llama3 { factor, original, low, high } => (
                "llama3",
                vec![("factor", factor), ("original", original), ("low", low), ("high", high)],
            ),
        }
    }
}

/// `none`, `linear:factor=2`, `llama3:factor=8,original=8192,low=1,high=4`, and so on.
impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, values) = self.parts();
        f.write_str(name)?;
        for (n, (name, value)) in values.into_iter().enumerate() {
            write!(f, "{}{name}={value}", if n == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl FromStr for RopeScaling {
    type Err = String;

    fn from_str(text: &str) -> Result<RopeScaling, String> {
        let (name, values) = text.split_once(':').unwrap_or((text, ""));
        let mut numbers = Vec::new();
        for value in values.split(',').filter(|value| !value.is_empty()) {
            let number = value.split_once('=').and_then(|(k, v)| Some((k, v.parse().ok()?)));
            let number: (&str, f64) =
                number.ok_or_else(|| format!("`{value}` is not NAME=NUMBER"))?;
            numbers.push(number);
        }
        let mut take = |name: &str, default: Option<f64>| {
            let at = numbers.iter().position(|(other, _)| *other == name);
            at.map(|at| numbers.remove(at).1)
                .or(default)
                .ok_or_else(|| format!("`{text}` lacks {name}=NUMBER"))
        };
        let scaling = match name {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: take("factor", None)? },
            "dynamic" => RopeScaling::Dynamic {
                factor: take("factor", None)?,
                original: take("original", None)?,
            },
            "yarn" => {
                let factor = take("factor", None)?;
                RopeScaling::Yarn {
                    factor,
                    original: take("original", None)?,
                    fast: take("fast", Some(32.0))?,
                    slow: take("slow", Some(1.0))?,
                    attention: take("attention", Some(RopeScaling::yarn_attention(factor)))?,
                }
            }
            "llama3" => RopeScaling::Llama3 {
                factor: take("factor", None)?,
                original: take("original", None)?,
                low: take("low", Some(1.0))?,
                high: take("high", Some(4.0))?,
            },
            _ => {
                return Err(format!(
                    "`{name}` is not a scaling: choose none, linear, dynamic, yarn or llama3"
                ));
            }
        };
        match numbers.first() {
            Some((unknown, _)) => Err(format!("{name} has no number `{unknown}`")),
            None => Ok(scaling),
        }
    }
}

/// Returns the radians per position of each pair of features, for samples of `sequence` tokens.
pub(super) fn frequencies(
    theta: f64,
    scaling: &RopeScaling,
    dim: usize,
    sequence: usize,
) -> Vec<f64> {
    let power = |theta: f64| {
        (0..dim / 2).map(move |pair| theta.powf(-2.0 * pair as f64 / dim as f64)).collect()
    };
    let plain: Vec<f64> = power(theta);
    match *scaling {
        RopeScaling::None => plain,
        RopeScaling::Linear { factor } => plain.iter().map(|f| f / factor).collect(),
        RopeScaling::Dynamic { factor, original } => {
            let longer = (sequence as f64).max(original) / original;
            let grown = factor * longer - (factor - 1.0);
            // The only pair rotates by one radian for any base.
            if dim == 2 {
                plain
            } else {
                power(theta * grown.powf(dim as f64 / (dim as f64 - 2.0)))
            }
        }
        RopeScaling::Yarn { factor, original, fast, slow, .. } => {
            // The pair, as a fraction, that turns this often within samples of the first training.
            let pair =
                |turns: f64| dim as f64 * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
            let first = pair(fast).floor().max(0.0);
            let last = pair(slow).ceil().min(dim as f64 - 1.0);
            let width = if last == first { 0.001 } else { last - first };
            let scaled = plain.iter().enumerate().map(|(n, f)| {
                let divided = ((n as f64 - first) / width).clamp(0.0, 1.0);
                f * (1.0 - divided) + f / factor * divided
            });
            scaled.collect()
        }
        RopeScaling::Llama3 { factor, original, low, high } => {
            let scaled = plain.iter().map(|f| {
                let kept = ((original * f / TAU - low) / (high - low)).clamp(0.0, 1.0);
                f * kept + f / factor * (1.0 - kept)
            });
            scaled.collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_frequencies(scaling: &str, dim: usize, sequence: usize, expected: &[f64]) {
        let found = frequencies(10_000.0, &scaling.parse().unwrap(), dim, sequence);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{scaling}: {found} is not {expected}");
        }
    }

    /// Values computed by hand from the papers' formulas.
    #[test]
    fn frequencies_are_those_of_the_formulas() {
        assert_frequencies("none", 8, 4, &[1.0, 0.1, 0.01, 0.001]);
        assert_frequencies("linear:factor=4", 8, 4, &[0.25, 0.025, 0.0025, 0.00025]);
        // Twice as long as before: the base becomes 10000 * 3^(8/6).
        let grown = |pair: f64| (10_000.0 * 3f64.powf(8.0 / 6.0)).powf(-pair / 4.0);
        let longer = [0.0, 1.0, 2.0, 3.0].map(grown);
        assert_frequencies("dynamic:factor=2,original=8", 8, 16, &longer);
        assert_frequencies("dynamic:factor=2,original=8", 8, 8, &[1.0, 0.1, 0.01, 0.001]);
        // Within 2000 tokens they turn 318, 32, 3.2 and 0.32 times: the third is between 1 and 4.
        let kept = (2000.0 * 0.01 / TAU - 1.0) / 3.0;
        let third = 0.01 * kept + 0.01 / 8.0 * (1.0 - kept);
        let llama3 = "llama3:factor=8,original=2000";
        assert_frequencies(llama3, 8, 4, &[1.0, 0.1, third, 0.001 / 8.0]);
        // Pairs 0.9975 and 2.502 turn 32 times and once: the ramp goes from pair 0 to pair 3.
        let ramp = |f: f64, n: f64| f * (1.0 - n / 3.0) + f / 4.0 * n / 3.0;
        let yarn = [1.0, ramp(0.1, 1.0), ramp(0.01, 2.0), 0.001 / 4.0];
        assert_frequencies("yarn:factor=4,original=1999", 8, 4, &yarn);
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in [
            "none",
            "linear:factor=2.5",
            "dynamic:factor=2,original=2048",
            "yarn:factor=4,original=32768,fast=32,slow=1,attention=1.2",
            "llama3:factor=8,original=8192,low=1,high=4",
        ] {
            let scaling: RopeScaling = text.parse().unwrap();
            assert_eq!(scaling.to_string(), text);
            assert_eq!(scaling.validate(4096), Ok(()));
        }
        let usual: RopeScaling = "yarn:factor=4,original=100".parse().unwrap();
        assert!(usual.to_string().starts_with("yarn:factor=4,original=100,fast=32,slow=1,"));
    }

    #[test]
    fn what_is_no_scaling_is_refused() {
        let refusal = |text: &str| text.parse::<RopeScaling>().unwrap_err();
        assert!(refusal("ntk").contains("choose none, linear, dynamic, yarn or llama3"));
        assert_eq!(refusal("linear"), "`linear` lacks factor=NUMBER");
        assert_eq!(refusal("linear:2"), "`2` is not NAME=NUMBER");
        assert_eq!(refusal("linear:factor=2,original=4"), "linear has no number `original`");
        let unsound = |text: &str| text.parse::<RopeScaling>().unwrap().validate(4096).is_err();
        assert!(unsound("dynamic:factor=2,original=1024"), "its context is 2048");
        for text in ["dynamic:factor=128,original=32.5", "yarn:factor=4,original=32.5"] {
            let refusal = text.parse::<RopeScaling>().unwrap().validate(4160).unwrap_err();
            assert_eq!(
                refusal.to_string(),
                "`original` of rope-scaling is 32.5, but counts tokens: choose a whole number"
            );
        }
        assert!(unsound("linear:factor=0"));
        assert!(unsound("linear:factor=inf"));
        assert!(unsound("llama3:factor=8,original=8192,low=4,high=4"));
    }
}

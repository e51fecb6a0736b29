//! Numbers with units: rates of compute, counts of tokens, times and rates of links.

/// Factors of decimal prefixes.
const PREFIXES: [(&str, f64); 7] =
    [("K", 1e3), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15), ("E", 1e18)];
/// Factors of units of time, in seconds. The longest names come first.
const TIMES: [(&str, f64); 5] =
    [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)];
/// Bits and bytes, in bytes.
const BYTES: [(&str, f64); 4] = [("bit", 0.125), ("iB", 1.0), ("B", 1.0), ("b", 0.125)];

/// Parses FLOP/s such as `120T`, `120 TFLOPS` or `1.2e14`.
pub(crate) fn flops(text: &str) -> Result<f64, String> {
    let number = text.trim();
    let ends = ["FLOP/s", "FLOPS", "FLOPs", "flops"];
    let number = ends.iter().find_map(|end| number.strip_suffix(end)).unwrap_or(number);
    prefixed(number, &PREFIXES)
        .filter(|x| (1.0..=1e30).contains(x))
        .ok_or_else(|| format!("`{text}` is not a number from 1 to 1e30, such as 120T or 1.2e14"))
}

/// Parses a number of tokens such as `300B`, `1.5T` or `10000`.
pub(crate) fn tokens(text: &str) -> Result<f64, String> {
    let units = [("k", 1e3), ("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)];
    prefixed(text, &units)
        .filter(|x| (1.0..=1e18).contains(x))
        .ok_or_else(|| format!("`{text}` is not a number of tokens such as 300B, 20M or 1e9"))
}

/// Parses a time with a unit to seconds.
pub(crate) fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, unit) =
        TIMES.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    Some(plain(number)? * unit)
}

/// Parses a rate with a unit, such as `300GB/s`, `25GiB/s` or `400Gbit/s`, to bytes per second.
pub(crate) fn bytes_per_s(text: &str) -> Option<f64> {
    let text = text.trim();
    let amount = text.strip_suffix("/s").or_else(|| text.strip_suffix("ps"))?;
    let (number, (unit, bytes)) =
        BYTES.iter().find_map(|unit| Some((amount.strip_suffix(unit.0)?, unit)))?;
    let binary = PREFIXES.map(|(name, factor)| (name, 1024f64.powf(factor.log10() / 3.0)));
    let prefixes = if *unit == "iB" { &binary } else { &PREFIXES };
    Some(prefixed(number, prefixes)? * bytes).filter(|rate| *rate > 0.0)
}

/// Parses a number with an optional prefix of a unit.
fn prefixed(text: &str, prefixes: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let found = prefixes.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    let (number, unit) = found.unwrap_or((text, 1.0));
    Some(plain(number)? * unit)
}

/// Parses a finite number that is not negative.
fn plain(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|x| (0.0..=1e30).contains(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_compute_have_prefixes() {
        for text in ["120T", "120 T", "120TFLOPS", "120 TFLOP/s", "1.2e14", "0.12P"] {
            let read = flops(text).unwrap();
            assert!((read / 1.2e14 - 1.0).abs() < 1e-12, "{text}: {read}");
        }
        for text in ["", "T", "-1T", "0", "fast", "nanT", "1e40"] {
            assert!(flops(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_have_words_of_thousands() {
        assert_eq!(
            ["300B", "20M", "1.5T", "10k", "7"].map(|text| tokens(text).unwrap()),
            [300e9, 20e6, 1.5e12, 1e4, 7.0]
        );
        assert!(tokens("300G").is_err() && tokens("0").is_err());
    }

    #[test]
    fn links_have_times_and_rates() {
        for (text, expected) in
            [("5us", 5e-6), ("5 µs", 5e-6), ("2ms", 2e-3), ("80ns", 8e-8), ("1s", 1.0)]
        {
            assert!((seconds(text).unwrap() / expected - 1.0).abs() < 1e-12, "{text}");
        }
        assert_eq!(seconds("5e-6"), None);
        for (text, expected) in [
            ("300GB/s", 300e9),
            ("400Gbit/s", 50e9),
            ("400Gb/s", 50e9),
            ("400Gbps", 50e9),
            ("2GiB/s", 2.0 * 1073741824.0),
            ("100B/s", 100.0),
        ] {
            assert!((bytes_per_s(text).unwrap() / expected - 1.0).abs() < 1e-12, "{text}");
        }
        for text in ["300GB", "300e9", "GB/s", "0GB/s", "-1GB/s", "3X/s"] {
            assert_eq!(bytes_per_s(text), None, "{text}");
        }
    }
}

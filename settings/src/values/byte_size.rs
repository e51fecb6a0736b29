//! Numbers of bytes in the notation of people.

use std::fmt;
use std::str::FromStr;

/// Units by name, binary ones first; `G` is GB. The largest unit that gives a whole number is used.
const UNITS: [(&str, u64); 13] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("K", 1_000),
];
const N_BINARY: usize = 4;

/// A number of bytes: `25MiB`, `1.5 GB` to the nearest byte, or `4096` for bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Returns the number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> ByteSize {
        ByteSize(bytes)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteSize, String> {
        let text = text.trim();
        let unit = UNITS.iter().find_map(|(name, unit)| {
            let number = text.len().checked_sub(name.len())?;
            let (number, tail) = text.split_at_checked(number)?;
            tail.eq_ignore_ascii_case(name).then_some((number.trim_end(), *unit))
        });
        let (number, unit) = unit.unwrap_or((text, 1));
        let bytes = number.parse::<f64>().map(|number| match unit {
            1 => number,
            unit => (number * unit as f64).round(),
        });
        match bytes {
            Ok(bytes) if (0.0..=2f64.powi(53)).contains(&bytes) && bytes.fract() == 0.0 => {
                Ok(ByteSize(bytes as u64))
            }
            _ => Err(format!("`{text}` is not a whole number of bytes such as 25MiB, 1GB or 4096")),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = |(_, unit): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*unit);
        match UNITS[..N_BINARY].iter().find(is_whole) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, again) in [
            ("25MiB", 25 << 20, "25MiB"),
            ("25 mib", 25 << 20, "25MiB"),
            ("1.5KiB", 1536, "1536"),
            ("0.3 KiB", 307, "307"),
            ("2tib", 2 << 40, "2TiB"),
            ("1TB", 1_000_000_000_000, "976562500KiB"),
            ("2GB", 2_000_000_000, "1953125KiB"),
            ("4096", 4096, "4KiB"),
            ("7B", 7, "7"),
            ("40G", 40_000_000_000, "39062500KiB"),
            ("1.5k", 1500, "1500"),
            ("0", 0, "0"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, again), "{text}");
            assert_eq!(again.parse(), Ok(size), "{text}");
        }
        for text in
            ["", "MiB", "-1", "1.5", "many", "1e30", "nan", "-1GiB", "infGB", "24X", "9000TiB", "é"]
        {
            let refusal = text.parse::<ByteSize>().unwrap_err();
            assert!(refusal.contains("such as 25MiB"), "{refusal}");
        }
    }
}

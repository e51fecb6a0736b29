//! Compression of the messages between workers: activations, and gradients of activations.
//!
//! Messages in fewer bytes suit slow links. The numbers that arrive are rounded, so compression
//! changes the result of a training. Which messages are compressed depends only on the workers at
//! their ends, so that every transport carries the same bits.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::ids::WorkerId;

/// Values of a block of [`MessageFormat::Int8`], which share a scale.
pub const BLOCK: usize = 64;

named_values! {
    /// The number format of a message between two workers.
    pub enum MessageFormat: "format of messages" {
        /// Exact.
        F32 = "f32",
        /// Rounded to bf16.
        Bf16 = "bf16",
        /// Rounded to 8 bits, with a scale of 32 bits for each [block](BLOCK).
        Int8 = "int8",
    }
}

impl MessageFormat {
    /// Returns the size of messages in this format, as a fraction of their size in f32.
    pub fn part(self) -> f64 {
        match self {
            MessageFormat::F32 => 1.0,
            MessageFormat::Bf16 => 0.5,
            MessageFormat::Int8 => 0.25 + 1.0 / BLOCK as f64,
        }
    }
}

/// The format of messages between the workers of a pipeline, and the pairs of workers that use it.
/// Written `int8`, or `int8:0-1,2-3` for pairs of workers; the others then send f32.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compression {
    format: MessageFormat,
    /// Pairs of workers, the lower one first; empty for all.
    pairs: BTreeSet<(WorkerId, WorkerId)>,
}

impl Default for Compression {
    /// All messages in f32.
    fn default() -> Compression {
        Compression::of(MessageFormat::F32)
    }
}

impl Compression {
    /// All messages between workers in this format.
    pub fn of(format: MessageFormat) -> Compression {
        Compression { format, pairs: BTreeSet::new() }
    }

    /// Returns true if no message is compressed.
    pub fn is_off(&self) -> bool {
        self.format == MessageFormat::F32
    }

    /// Returns true if it is for some pairs of workers only.
    pub fn has_pairs(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Refuses workers that a pipeline of `depth` workers does not have.
    ///
    /// # Errors
    /// If it names such a worker.
    pub fn check(&self, depth: usize) -> Result<(), String> {
        match self.pairs.iter().map(|(_, higher)| higher.index()).max() {
            Some(last) if last >= depth => Err(format!(
                "wire {self} names worker {last}, but a pipeline has {depth} workers, from 0: name \
                 pairs of these, or leave the pairs out"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the format of messages between two workers.
    pub fn between(&self, a: WorkerId, b: WorkerId) -> MessageFormat {
        let applies = self.pairs.is_empty() || self.pairs.contains(&(a.min(b), a.max(b)));
        if applies { self.format } else { MessageFormat::F32 }
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        let Some((format, pairs)) = text.split_once(':') else {
            return text.trim().parse().map(Compression::of);
        };
        let format = format.trim().parse()?;
        if format == MessageFormat::F32 {
            return Err("f32 compresses nothing: leave its pairs of workers out".into());
        }
        let pair = |text: &str| {
            let (a, b) = text.split_once('-')?;
            let [a, b] = [a, b].map(|worker| worker.trim().parse().ok().map(WorkerId));
            let (a, b) = (a?, b?);
            (a != b).then_some((a.min(b), a.max(b)))
        };
        let pairs = pairs.split(',').map(|text| {
            pair(text).ok_or_else(|| format!("`{text}` is not a pair of workers such as 0-1"))
        });
        Ok(Compression { format, pairs: pairs.collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = MessageFormat::ALL.iter().find(|(_, format)| *format == self.format);
        f.write_str(named.map_or("", |(name, _)| name))?;
        let pairs: Vec<_> = self.pairs.iter().map(|(a, b)| format!("{}-{}", a.0, b.0)).collect();
        if pairs.is_empty() { Ok(()) } else { write!(f, ":{}", pairs.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_workers_are_written_once_and_in_order() {
        for (text, written) in [
            ("f32", "f32"),
            ("bf16", "bf16"),
            ("int8", "int8"),
            ("int8:1-0", "int8:0-1"),
            ("bf16: 2-3, 0-1,1-0", "bf16:0-1,2-3"),
        ] {
            let compression: Compression = text.parse().unwrap();
            assert_eq!(compression.to_string(), written);
            assert_eq!(written.parse(), Ok(compression));
        }
    }

    #[test]
    fn only_the_named_pairs_are_compressed_in_both_directions() {
        let some: Compression = "int8:1-2".parse().unwrap();
        let of = |a, b| some.between(WorkerId(a), WorkerId(b));
        assert_eq!([of(1, 2), of(2, 1)], [MessageFormat::Int8; 2]);
        assert_eq!([of(0, 1), of(2, 3), of(0, 2)], [MessageFormat::F32; 3]);
        assert_eq!(some.check(3), Ok(()));
        let absent = "wire int8:1-2 names worker 2, but a pipeline has 2 workers, from 0: name pairs \
                      of these, or leave the pairs out";
        assert_eq!(some.check(2), Err(absent.into()));
        assert!(some.has_pairs() && !some.is_off());
        let all = Compression::of(MessageFormat::Bf16);
        assert_eq!(all.between(WorkerId(0), WorkerId(7)), MessageFormat::Bf16);
        assert!(!all.has_pairs() && Compression::default().is_off());
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        for (text, why) in [
            ("int4", "unknown format of messages `int4`: choose one of f32, bf16, int8"),
            ("f32:0-1", "f32 compresses nothing: leave its pairs of workers out"),
            ("int8:", "`` is not a pair of workers such as 0-1"),
            ("int8:0", "`0` is not a pair of workers such as 0-1"),
            ("int8:1-1", "`1-1` is not a pair of workers such as 0-1"),
            ("int8:0-1,2-x", "`2-x` is not a pair of workers such as 0-1"),
            ("int8:0-70000", "`0-70000` is not a pair of workers such as 0-1"),
        ] {
            assert_eq!(text.parse::<Compression>().unwrap_err(), why);
        }
    }
}

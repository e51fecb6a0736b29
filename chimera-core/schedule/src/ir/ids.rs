//! Newtypes for every index, so that a stage is never taken for a worker.

use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $read:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// The index as a `usize`, for use with slices.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let number = WholeNumber::new($prefix, 0, <$repr>::MAX.into());
                deserializer.$read(number).map(|number| $name(number as $repr))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, " {}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// One contiguous piece of the model, `0..S`.
    StageId, u16, deserialize_u16, "stage"
);
id!(
    /// One full traversal of all stages, which carries some of the micro-batches.
    PipeId, u16, deserialize_u16, "pipe"
);
id!(
    /// One member of a pipeline group, `0..D`.
    WorkerId, u16, deserialize_u16, "worker"
);
id!(
    /// A worker of the whole job: `group * D + worker`, `0..W*D`.
    Rank, u32, deserialize_u32, "rank"
);
id!(
    /// Index into [`Rules::works`](crate::effects::Rules::works).
    WorkId, u8, deserialize_u8, "work"
);
id!(
    /// A set of gradients that are summed over the same replicas together.
    BucketId, u32, deserialize_u32, "bucket"
);
id!(
    /// Index into [`Program::channels`](crate::program::Program::channels).
    ChannelId, u32, deserialize_u32, "channel"
);

/// Reads a whole number from `least` to `most`. Errors name the value that was expected.
#[derive(Clone, Copy)]
pub(crate) struct WholeNumber {
    what: &'static str,
    least: u64,
    most: u64,
    is_checked_later: bool,
}

impl WholeNumber {
    /// Reads a number with this name and range.
    pub(crate) fn new(what: &'static str, least: u64, most: u64) -> WholeNumber {
        WholeNumber { what, least, most, is_checked_later: false }
    }

    /// Accepts every number from 0 up, for callers that check the range later.
    pub(crate) fn checked_later(self) -> WholeNumber {
        WholeNumber { is_checked_later: true, ..self }
    }

    fn refuse<E: Error>(self, number: impl fmt::Display) -> E {
        let WholeNumber { what, least, most, .. } = self;
        E::custom(format_args!("{what}: {number} is not a whole number from {least} to {most}"))
    }
}

impl Visitor<'_> for WholeNumber {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WholeNumber { what, least, most, .. } = self;
        write!(f, "{what} as a whole number from {least} to {most}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        if self.is_checked_later || (self.least..=self.most).contains(&number) {
            Ok(number)
        } else {
            Err(self.refuse(number))
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(self.refuse(number)),
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<u64, E> {
        Err(self.refuse(number))
    }
}

/// Formats ascending ranks: `rank 3`, or `ranks 0-2, 5`.
pub fn listed(ranks: &[Rank]) -> String {
    let runs = ranks.chunk_by(|a, b| a.0 + 1 == b.0).map(|run| match run {
        [first, .., last] => format!("{}-{}", first.0, last.0),
        _ => run.iter().map(|rank| rank.0.to_string()).collect(),
    });
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", runs.collect::<Vec<_>>().join(", "))
}

//! Newtypes for every index, so that a stage is never taken for a worker.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// The index as a `usize`, for use with slices.
            pub fn index(self) -> usize {
                self.0 as usize
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
    StageId, u16, "stage"
);
id!(
    /// One full traversal of all stages, which carries some of the micro-batches.
    PipeId, u16, "pipe"
);
id!(
    /// One member of a pipeline group, `0..D`.
    WorkerId, u16, "worker"
);
id!(
    /// A worker of the whole job: `group * D + worker`, `0..W*D`.
    Rank, u32, "rank"
);
id!(
    /// Index into [`Rules::works`](crate::effects::Rules::works).
    WorkId, u8, "work"
);
id!(
    /// A set of gradients that are summed over the same replicas together.
    BucketId, u32, "bucket"
);
id!(
    /// Index into [`Program::channels`](crate::program::Program::channels).
    ChannelId, u32, "channel"
);

/// Ascending ranks in words: `rank 3`, or `ranks 0-2, 5`.
pub fn listed(ranks: &[Rank]) -> String {
    let runs = ranks.chunk_by(|a, b| a.0 + 1 == b.0).map(|run| match run {
        [first, .., last] => format!("{}-{}", first.0, last.0),
        _ => run.iter().map(|rank| rank.0.to_string()).collect(),
    });
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", runs.collect::<Vec<_>>().join(", "))
}

//! How the layers of a model are shared out among the stages.

use std::fmt;
use std::str::FromStr;

use chimera_core::model::{Partition, PartitionError};

/// Which layers each stage holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Stages of as equal forward work as can be.
    Balanced,
    /// What makes the step shortest, by a simulation of the schedule.
    Auto,
    /// These.
    Is(Partition),
}

impl Layout {
    /// Words that stand for a way to find one.
    pub const WORDS: [(&'static str, Layout); 2] =
        [("balanced", Layout::Balanced), ("auto", Layout::Auto)];
}

impl FromStr for Layout {
    type Err = PartitionError;

    fn from_str(text: &str) -> Result<Layout, PartitionError> {
        let word = Layout::WORDS.into_iter().find(|(word, _)| *word == text);
        word.map_or_else(|| text.parse().map(Layout::Is), |(_, layout)| Ok(layout))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Balanced => f.write_str("balanced"),
            Layout::Auto => f.write_str("auto"),
            Layout::Is(partition) => partition.fmt(f),
        }
    }
}

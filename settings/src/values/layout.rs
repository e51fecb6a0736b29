//! The assignment of a model's layers to stages.

use std::fmt;
use std::str::FromStr;

use chimera_core::model::{Partition, PartitionError};

/// The layers of each stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Stages whose forward work is as equal as possible.
    Balanced,
    /// The layout with the shortest step, according to a simulation of the schedule.
    Auto,
    /// As many layers on each rank, as in Megatron-LM: refused if they do not divide.
    Uniform,
    /// A given layout.
    Is(Partition),
}

impl Layout {
    /// Words for the ways to find a layout.
    pub const WORDS: [(&'static str, Layout); 3] =
        [("balanced", Layout::Balanced), ("auto", Layout::Auto), ("uniform", Layout::Uniform)];

    /// Options that make the layout `uniform`, and say how many layers the outer ranks have.
    pub const SPLIT: [&'static str; 4] = [
        "decoder-first-pipeline-num-layers",
        "decoder-last-pipeline-num-layers",
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
    ];
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
            Layout::Uniform => f.write_str("uniform"),
            Layout::Is(partition) => partition.fmt(f),
        }
    }
}

//! Partitions of a model's layers into stages, and their notation.

use std::fmt;
use std::str::FromStr;

use super::config::{Cut, ModelConfig};
use super::error::ModelError;

mod megatron;
mod uniform;

pub use megatron::MegatronError;
pub use uniform::{SplitError, UniformSplit};

/// The number of transformer blocks per stage. The embedding is part of the first stage, the head
/// of the last. Written `E3T|4T|4T|3TH`, as a list of blocks, `3,4,4,3`, or as Megatron does,
/// `Et*3|(t*4|)*2t*3L`. Only Megatron's way can write a stage without a layer, which passes its
/// input on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    blocks: Vec<usize>,
    /// The stage with layers of multi-token prediction, and their number.
    predictors: Option<(usize, usize)>,
}

/// The reason why a text is not a partition.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PartitionError {
    /// A stage holds no layer.
    #[error("stage {0} is empty: give it at least one block, such as 1T, or leave it out")]
    Empty(usize),
    /// A letter that stands for no layer.
    #[error(
        "stage {stage} has `{letter}`: write E for the embedding, T for a transformer block and H for the head with the \
         loss"
    )]
    Letter {
        /// The stage.
        stage: usize,
        /// The letter.
        letter: char,
    },
    /// A count of layers that is not a valid number.
    #[error(
        "stage {stage} has the count `{count}`: write a number from 1 to {MOST_BLOCKS} before a letter, such as 3T"
    )]
    Count {
        /// The stage.
        stage: usize,
        /// The invalid text.
        count: String,
    },
    /// A number of blocks in a list that is not valid.
    #[error(
        "`{count}` is not a number of blocks: write one from 0 to {MOST_BLOCKS} for each stage, such as 3,4,4,3"
    )]
    Listed {
        /// The invalid text.
        count: String,
    },
    /// The embedding is missing, or is not the first layer.
    #[error(
        "the embedding is the first layer of all: write E once, at the start of stage 0, as in E3T|4T|4T|3TH"
    )]
    Embedding,
    /// The head is missing, or is not the last layer.
    #[error(
        "the head is the last layer of all: write H once, at the end of the last stage, as in E3T|4T|4T|3TH"
    )]
    Head,
    /// A text in Megatron's notation that is not a layout.
    #[error(transparent)]
    Megatron(#[from] MegatronError),
    /// Layers that cannot be split uniformly.
    #[error(transparent)]
    Split(#[from] SplitError),
}

/// The most blocks of a stage: as many as a model may have.
const MOST_BLOCKS: usize = 1 << 14;

impl Partition {
    /// Makes a partition from blocks per stage. Only the first and last stage may have none.
    ///
    /// # Errors
    /// [`PartitionError::Empty`].
    pub fn new(blocks: Vec<usize>) -> Result<Partition, PartitionError> {
        let last = blocks.len().checked_sub(1).ok_or(PartitionError::Empty(0))?;
        let empty = (1..last).find(|&stage| blocks[stage] == 0);
        let partition = Partition { blocks, predictors: None };
        empty.map_or(Ok(partition), |stage| Err(PartitionError::Empty(stage)))
    }

    /// Returns the partition of these cuts.
    pub fn of(cuts: &[Cut]) -> Partition {
        Partition { blocks: cuts.iter().map(|cut| cut.blocks.len()).collect(), predictors: None }
    }

    /// Returns the number of transformer blocks of each stage.
    pub fn blocks(&self) -> &[usize] {
        &self.blocks
    }

    /// Writes the layout as Megatron-LM reads it, such as `Et*3|(t*4|)*2t*3L`.
    pub fn to_megatron(&self) -> String {
        megatron::write(self)
    }

    /// Returns true if our own notation can write it: each inner stage has a block.
    fn is_own(&self) -> bool {
        let inner = self.blocks.get(1..self.blocks.len() - 1).unwrap_or_default();
        self.predictors.is_none() && !inner.contains(&0)
    }

    /// Returns the stages of a model.
    ///
    /// # Errors
    /// If there are not `n_stages`, the model has a different number of layers, or the layout has
    /// layers of multi-token prediction.
    pub fn cuts(&self, config: &ModelConfig, n_stages: usize) -> Result<Vec<Cut>, ModelError> {
        let (partition, n_held) = (self.to_string(), self.blocks.iter().sum());
        if self.predictors.is_some() {
            return Err(ModelError::PartitionPredictors { partition });
        }
        if self.blocks.len() != n_stages {
            let held = self.blocks.len();
            return Err(ModelError::PartitionStages { partition, held, stages: n_stages });
        }
        if n_held != config.layers {
            let layers = config.layers;
            return Err(ModelError::PartitionBlocks { partition, held: n_held, layers });
        }
        let mut start = 0;
        let cut = |(stage, len): (usize, &usize)| {
            let blocks = start..start + len;
            start = blocks.end;
            Cut { blocks, first: stage == 0, last: stage + 1 == n_stages, ..Cut::default() }
        };
        Ok(self.blocks.iter().enumerate().map(cut).collect())
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_own() {
            return f.write_str(&self.to_megatron());
        }
        let last = self.blocks.len() - 1;
        for (stage, blocks) in self.blocks.iter().enumerate() {
            f.write_str(if stage == 0 { "E" } else { "|" })?;
            if *blocks > 0 {
                write!(f, "{blocks}T")?;
            }
            if stage == last {
                f.write_str("H")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Partition {
    type Err = PartitionError;

    fn from_str(text: &str) -> Result<Partition, PartitionError> {
        if megatron::is_megatron(text) {
            return Ok(megatron::read(text)?);
        }
        let is_list = text.contains(',') || text.trim().bytes().all(|byte| byte.is_ascii_digit());
        if is_list && !text.trim().is_empty() {
            return Partition::new(text.split(',').map(listed).collect::<Result<_, _>>()?);
        }
        let stages: Vec<&str> = text.split('|').map(str::trim).collect();
        let last = stages.len() - 1;
        let mut blocks = Vec::with_capacity(stages.len());
        for (stage, mut layers) in stages.into_iter().enumerate() {
            if layers.is_empty() {
                return Err(PartitionError::Empty(stage));
            }
            if stage == 0 {
                layers = layers.strip_prefix(['E', 'e']).ok_or(PartitionError::Embedding)?;
            }
            if stage == last {
                layers = layers.strip_suffix(['H', 'h']).ok_or(PartitionError::Head)?;
            }
            blocks.push(counted(stage, layers)?);
        }
        Partition::new(blocks)
    }
}

/// Parses a number of blocks in a list.
fn listed(text: &str) -> Result<usize, PartitionError> {
    let count = text.trim();
    let number = count.parse().ok().filter(|n| *n <= MOST_BLOCKS);
    number.ok_or_else(|| PartitionError::Listed { count: count.into() })
}

/// Parses the blocks of a stage, written as counts before letters: `3T`, `TTT` or `2TT`.
fn counted(stage: usize, mut layers: &str) -> Result<usize, PartitionError> {
    let mut blocks = 0;
    while !layers.is_empty() {
        let n_digits = layers.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = layers.split_at(n_digits);
        let wrong = || PartitionError::Count { stage, count: digits.into() };
        let count = match digits {
            "" => 1,
            digits => {
                let count = digits.parse().ok();
                count.filter(|count| (1..=MOST_BLOCKS).contains(count)).ok_or_else(wrong)?
            }
        };
        let letter = rest.chars().next().ok_or_else(wrong)?;
        match letter {
            'T' | 't' => blocks += count,
            'E' | 'e' => return Err(PartitionError::Embedding),
            'H' | 'h' => return Err(PartitionError::Head),
            _ => return Err(PartitionError::Letter { stage, letter }),
        }
        layers = &rest[letter.len_utf8()..];
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::super::Architecture;
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for (text, blocks, shown) in [
            ("E3T|4T|4T|3TH", &[3, 4, 4, 3][..], "E3T|4T|4T|3TH"),
            ("3,4, 4,3", &[3, 4, 4, 3], "E3T|4T|4T|3TH"),
            ("ETTT | tT|2th", &[3, 2, 2], "E3T|2T|2TH"),
            ("E|12T|H", &[0, 12, 0], "E|12T|H"),
            ("0,12,0", &[0, 12, 0], "E|12T|H"),
            ("E8TH", &[8], "E8TH"),
            ("8", &[8], "E8TH"),
        ] {
            let partition: Partition = text.parse().unwrap();
            assert_eq!((partition.blocks(), partition.to_string().as_str()), (blocks, shown));
            assert_eq!(shown.parse(), Ok(partition));
        }
    }

    #[test]
    fn refusals_say_where_and_what_to_write() {
        for (text, refusal) in [
            ("", "stage 0 is empty: give it at least one block"),
            ("E3T||3TH", "stage 1 is empty"),
            ("3,0,3", "stage 1 is empty"),
            ("E3T|", "stage 1 is empty"),
            (
                "3T|3TH",
                "the embedding is the first layer of all: write E once, at the start of stage 0",
            ),
            ("3T|E3TH", "the embedding is the first layer of all"),
            ("E3T|E3TH", "the embedding is the first layer of all"),
            ("3TE|3TH", "the embedding is the first layer of all"),
            (
                "E3T|3T",
                "the head is the last layer of all: write H once, at the end of the last stage",
            ),
            ("E3TH|3TH", "the head is the last layer of all"),
            ("E3T|H3T", "the head is the last layer of all"),
            ("E3T|3X|3TH", "stage 1 has `X`: write E for the embedding, T"),
            (
                "E3T|3|3TH",
                "stage 1 has the count `3`: write a number from 1 to 16384 before a letter",
            ),
            ("E0T|3TH", "stage 0 has the count `0`"),
            ("E99999999999999999999T|TH", "stage 0 has the count `99999999999999999999`"),
            ("3,x,3", "`x` is not a number of blocks: write one from 0 to 16384 for each stage"),
            ("3,,3", "`` is not a number of blocks"),
            ("E3T,3TH", "`E3T` is not a number of blocks"),
        ] {
            let error = text.parse::<Partition>().expect_err(text).to_string();
            assert!(error.starts_with(refusal), "{text}: {error}");
        }
    }

    #[test]
    fn a_partition_must_be_of_the_model() {
        let config = ModelConfig {
            architecture: Architecture::GPT2,
            layers: 6,
            hidden: 16,
            heads: 2,
            context: 8,
            vocab: 1,
            tied: false,
            llama: None,
            end_of_text: None,
        };
        let cuts = |text: &str| text.parse::<Partition>().unwrap().cuts(&config, 2);
        let cut = cuts("1,5").unwrap();
        assert_eq!(Partition::of(&cut).blocks(), [1, 5]);
        let of = |cut: &Cut| (cut.blocks.clone(), cut.first, cut.last);
        assert_eq!((of(&cut[0]), of(&cut[1])), ((0..1, true, false), (1..6, false, true)));
        assert_eq!(
            cuts("1,4").unwrap_err().to_string(),
            "layout E1T|4TH holds 5 block(s), but the model has 6 layers: choose counts whose sum is 6"
        );
        assert_eq!(
            cuts("1,4,1").unwrap_err().to_string(),
            "layout E1T|4T|1TH has 3 stage(s), but depth and schedule make 2: write the layers of each"
        );
    }
}

//! Megatron-LM's even split of layers over ranks. The first and last rank may have numbers of
//! layers of their own, or the embedding and the loss count as layers. The refusals are those of
//! Megatron's `TransformerConfig.__post_init__`.

use super::{Partition, PartitionError};

/// A uniform split of a model's blocks over the ranks of a pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UniformSplit {
    /// Blocks of the first rank.
    pub first: Option<usize>,
    /// Blocks of the last rank.
    pub last: Option<usize>,
    /// The embedding counts as a block of the first stage.
    pub counts_embedding: bool,
    /// The head with the loss counts as a block of the last stage.
    pub counts_loss: bool,
}

/// The reason why layers cannot be split uniformly.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SplitError {
    /// Numbers of layers for the outer ranks, while the embedding or the loss count as layers.
    #[error(
        "decoder-first-pipeline-num-layers and decoder-last-pipeline-num-layers say how many layers the outer ranks \
         have, and account-for-embedding-in-pipeline-split and account-for-loss-in-pipeline-split find that number: \
         choose one way"
    )]
    BothWays,
    /// The layers do not divide evenly among the ranks, or among those in the middle.
    #[error(
        "{layers} layer(s) for {ranks} rank(s) of the pipeline are not as many for each: choose a multiple of {ranks}, or \
         another layout"
    )]
    Ranks {
        /// Layers to split.
        layers: usize,
        /// Ranks to split them over.
        ranks: usize,
    },
    /// The layers of a rank do not divide evenly among its stages.
    #[error(
        "{layers} layer(s) of a rank are not as many for each of its {chunks} stages: choose a multiple of {chunks}"
    )]
    Chunks {
        /// Layers of a rank.
        layers: usize,
        /// Stages of a rank.
        chunks: usize,
    },
    /// The outer ranks have more layers than the model.
    #[error(
        "the first and the last rank have {said} layer(s), and the model has {layers}: choose fewer"
    )]
    TooMany {
        /// Layers of the outer ranks.
        said: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// No rank is left for the other layers.
    #[error(
        "the first and the last rank are all of them, and have {said} of {layers} layers: choose {layers}"
    )]
    Fewer {
        /// Layers of the outer ranks.
        said: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The first or last rank would have no layer.
    #[error("an outer rank has 0 layers: choose at least 1, or leave the number out")]
    None,
}

impl UniformSplit {
    /// Splits `layers` over `depth` ranks with `chunks` stages each. Stage `s` is on rank
    /// `s mod depth`.
    ///
    /// # Errors
    /// [`SplitError`] where Megatron refuses, and where the ranks would not hold all layers.
    pub fn partition(
        &self,
        layers: usize,
        depth: usize,
        chunks: usize,
    ) -> Result<Partition, PartitionError> {
        let ranks = self.ranks(layers, depth)?;
        if let Some(layers) = ranks.iter().find(|layers| !layers.is_multiple_of(chunks)) {
            return Err(SplitError::Chunks { layers: *layers, chunks }.into());
        }
        let mut blocks: Vec<usize> = Vec::with_capacity(depth * chunks);
        for _ in 0..chunks {
            blocks.extend(ranks.iter().map(|layers| layers / chunks));
        }
        let last = blocks.len() - 1;
        for (stage, counts) in [(0, self.counts_embedding), (last, self.counts_loss)] {
            blocks[stage] =
                blocks[stage].checked_sub(usize::from(counts)).ok_or(SplitError::None)?;
        }
        Ok(Partition { blocks, predictors: None })
    }

    /// Returns the layers of each rank, among them the embedding and the loss if they count.
    fn ranks(&self, layers: usize, depth: usize) -> Result<Vec<usize>, SplitError> {
        let said = self.first.unwrap_or(0).saturating_add(self.last.unwrap_or(0));
        let n_said = usize::from(self.first.is_some()) + usize::from(self.last.is_some());
        let n_counted = usize::from(self.counts_embedding) + usize::from(self.counts_loss);
        if n_said > 0 && n_counted > 0 {
            return Err(SplitError::BothWays);
        }
        if [self.first, self.last].contains(&Some(0)) || n_said > depth {
            return Err(SplitError::None);
        }
        let rest = layers.checked_sub(said).ok_or(SplitError::TooMany { said, layers })?;
        let rest = rest + n_counted;
        let ranks = depth - n_said;
        let each = match ranks {
            0 if rest == 0 => 0,
            0 => return Err(SplitError::Fewer { said, layers }),
            ranks if rest.is_multiple_of(ranks) => rest / ranks,
            ranks => return Err(SplitError::Ranks { layers: rest, ranks }),
        };
        let middle = std::iter::repeat_n(each, ranks);
        Ok(self.first.into_iter().chain(middle).chain(self.last).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits with Megatron's verdict: layers, ranks, stages of a rank, layers of the first and the
    /// last rank, what counts, and 1 if it refuses.
    const SPLITS: &[(usize, usize, usize, Option<usize>, Option<usize>, &str, bool)] = &[
        (60, 5, 1, None, Some(4), "", false),
        (60, 8, 1, Some(6), Some(6), "", false),
        (64, 4, 1, None, None, "", false),
        (64, 4, 8, None, None, "", false),
        (60, 6, 1, Some(5), None, "", false),
        (101, 8, 1, Some(13), Some(13), "", true),
        (63, 4, 1, None, None, "E", false),
        (63, 4, 1, None, None, "L", false),
        (62, 4, 1, None, None, "EL", false),
        (62, 4, 2, None, None, "EL", false),
        (65, 4, 1, None, None, "", true),
        (65, 4, 1, None, None, "EL", true),
        (61, 4, 1, Some(12), None, "", true),
        (2, 4, 1, None, None, "", true),
        (60, 6, 1, Some(5), Some(5), "E", true),
        (50, 2, 7, None, None, "", true),
        (4, 4, 4, None, None, "", true),
    ];

    #[test]
    fn splits_have_the_verdict_of_megatron() {
        for split in SPLITS {
            let (layers, depth, chunks, first, last, counted, is_refused) = *split;
            let [counts_embedding, counts_loss] = ['E', 'L'].map(|letter| counted.contains(letter));
            let uniform = UniformSplit { first, last, counts_embedding, counts_loss };
            let found = uniform.partition(layers, depth, chunks);
            assert_eq!(found.is_err(), is_refused, "{split:?}: {found:?}");
            if let Ok(partition) = found {
                assert_eq!(partition.blocks().len(), depth * chunks);
                assert_eq!(partition.blocks().iter().sum::<usize>(), layers);
            }
        }
    }

    #[test]
    fn what_counts_is_taken_from_the_outer_stages() {
        let uniform =
            UniformSplit { counts_embedding: true, counts_loss: true, ..UniformSplit::default() };
        assert_eq!(uniform.partition(14, 4, 2).unwrap().blocks(), [1, 2, 2, 2, 2, 2, 2, 1]);
        let uniform = UniformSplit { first: Some(2), last: Some(4), ..UniformSplit::default() };
        assert_eq!(
            uniform.partition(12, 4, 2).unwrap_err().to_string().split(':').next(),
            Some("3 layer(s) of a rank are not as many for each of its 2 stages")
        );
        assert_eq!(uniform.partition(14, 4, 2).unwrap().blocks(), [1, 2, 2, 2, 1, 2, 2, 2]);
    }

    #[test]
    fn no_layer_is_lost() {
        let outer = |first, last| UniformSplit { first, last, ..UniformSplit::default() };
        assert!(outer(Some(10), Some(10)).partition(60, 2, 1).is_err());
        assert!(outer(Some(10), Some(10)).partition(12, 4, 1).is_err());
        assert!(outer(Some(10), Some(2)).partition(12, 1, 1).is_err());
        assert_eq!(outer(Some(10), Some(2)).partition(12, 2, 1).unwrap().blocks(), [10, 2]);
    }
}

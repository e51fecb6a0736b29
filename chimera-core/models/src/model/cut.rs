//! Cutting a model into the stages of a pipeline.

use super::config::{Cut, ModelConfig};
use super::error::ModelError;

/// Cuts a model into `n_stages` pieces of at least one block, minimising the most expensive one.
///
/// The cost is the forward work on samples of `sequence` tokens; backward work is twice that
/// everywhere. Blocks all cost the same, so giving each in turn to the cheapest stage is exact, and
/// makes the rest as even as possible. Ties go to the later stage: earlier ones hold more
/// micro-batches at a time, and the embedding, which has memory but almost no work.
pub fn cut(config: &ModelConfig, sequence: usize, n_stages: usize) -> Result<Vec<Cut>, ModelError> {
    config.check_sequence(sequence)?;
    if n_stages == 0 {
        return Err(ModelError::Zero { what: "stages" });
    }
    if n_stages > config.layers {
        return Err(ModelError::Stages { stages: n_stages, layers: config.layers });
    }
    let block = config.block_flops(sequence);
    let cost = |stage: usize, blocks: usize| {
        let head = if stage + 1 == n_stages { config.head_flops(sequence) } else { 0.0 };
        blocks as f64 * block + head
    };
    let mut blocks = vec![1; n_stages];
    for _ in n_stages..config.layers {
        let costs = (0..n_stages).map(|stage| cost(stage, blocks[stage])).enumerate();
        let cheapest = costs.rev().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(stage, _)| stage);
        blocks[cheapest] += 1;
    }
    let mut start = 0;
    let cuts = blocks.iter().enumerate().map(|(stage, len)| {
        let blocks = start..start + len;
        start = blocks.end;
        Cut { blocks, first: stage == 0, last: stage + 1 == n_stages, ..Cut::default() }
    });
    Ok(cuts.collect())
}

#[cfg(test)]
mod tests {
    use super::super::Architecture;
    use super::*;

    fn config(layers: usize, vocab: usize) -> ModelConfig {
        let architecture = Architecture::GPT2;
        ModelConfig {
            architecture,
            layers,
            hidden: 16,
            heads: 2,
            context: 8,
            vocab,
            tied: false,
            llama: None,
            end_of_text: None,
        }
    }

    fn sizes(config: &ModelConfig, n_stages: usize) -> Vec<usize> {
        let cuts = cut(config, config.context, n_stages).unwrap();
        assert_eq!(cuts[0].blocks.start, 0);
        assert_eq!(cuts[n_stages - 1].blocks.end, config.layers);
        assert!(cuts.windows(2).all(|c| c[0].blocks.end == c[1].blocks.start));
        assert_eq!(cuts.iter().filter(|c| c.first).count(), 1);
        assert_eq!(cuts.iter().filter(|c| c.last).count(), 1);
        cuts.iter().map(|c| c.blocks.len()).collect()
    }

    /// Returns the least cost of the most expensive of `n_stages` stages, by trying every cut. The
    /// last stage is taken off first; `head` is its cost beyond its blocks.
    fn least(layers: usize, n_stages: usize, block: f64, head: f64) -> f64 {
        if n_stages == 0 {
            return if layers == 0 { 0.0 } else { f64::INFINITY };
        }
        (1..=layers)
            .map(|n| (n as f64 * block + head).max(least(layers - n, n_stages - 1, block, 0.0)))
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn equal_blocks_are_shared_equally() {
        assert_eq!(sizes(&config(8, 1), 1), [8]);
        assert_eq!(sizes(&config(8, 1), 4), [2, 2, 2, 2]);
        assert_eq!(sizes(&config(6, 1), 4), [1, 2, 2, 1]);
        assert_eq!(sizes(&config(4, 1_000_000), 4), [1, 1, 1, 1]);
    }

    #[test]
    fn a_large_vocabulary_counts() {
        let gpt2_64 = ModelConfig {
            architecture: Architecture::GPT2,
            layers: 64,
            hidden: 1280,
            heads: 20,
            context: 1024,
            vocab: 50257,
            tied: false,
            llama: None,
            end_of_text: None,
        };
        // The head costs as much as 2.9 blocks.
        assert_eq!(sizes(&gpt2_64, 8), [8, 8, 8, 8, 8, 9, 9, 6]);
    }

    #[test]
    fn no_cut_is_better() {
        for layers in 1..=9 {
            for n_stages in 1..=layers {
                for vocab in [1, 200, 500, 1_000, 10_000] {
                    let config = config(layers, vocab);
                    let most = cut(&config, config.context, n_stages)
                        .unwrap()
                        .iter()
                        .map(|cut| config.forward_flops(cut, config.context))
                        .fold(0.0, f64::max);
                    let block = config.block_flops(config.context);
                    let head = config.head_flops(config.context);
                    assert_eq!(most, least(layers, n_stages, block, head));
                }
            }
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        assert_eq!(
            cut(&config(4, 1), 8, 8).unwrap_err().to_string(),
            "8 stages are more than the model's 4 layer(s), and each holds at least one: \
             choose at least 8 layers, or fewer stages: a smaller depth, fewer chunks or waves"
        );
        assert_eq!(
            cut(&config(4, 1), 8, 0).unwrap_err().to_string(),
            "stages is 0: choose at least 1"
        );
    }
}

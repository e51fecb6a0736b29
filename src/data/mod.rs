//! The text a model is trained on: token ids, and the batches drawn from them.
//!
//! Which windows a step sees follows from (seed, step, sample) alone, so that the global batch is the
//! same however the samples are spread over micro-batches, pipes and groups.

mod read;
mod tokens;

use std::ops::Range;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::corpus;
pub use read::read;
pub use tokens::Tokens;

/// Why data cannot be trained on (exit code 2).
#[derive(thiserror::Error, Debug)]
pub enum DataError {
    /// The file system refuses.
    #[error("cannot read data file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A folder, a device or a pipe.
    #[error("data file {} is not a regular file: name each file", path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// A file without any token.
    #[error("data file {} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A token file that ends within a token.
    #[error(
        "data file {} has {bytes} bytes, not a multiple of the {width} bytes of a token id",
        path.display()
    )]
    Torn {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Bytes per token id.
        width: usize,
    },
    /// Text and token files, or ids of two widths, in one corpus.
    #[error("data file {} holds {found}, but the files before it hold {expected}", path.display())]
    Mixed {
        /// The first file of another kind.
        path: PathBuf,
        /// Its kind.
        found: &'static str,
        /// That of the files before it.
        expected: &'static str,
    },
    /// An id that the model does not know.
    #[error(
        "data file {}: token {position} has id {id}, but the vocabulary has {vocab} ids: \
         choose vocab {} or more",
        path.display(), u64::from(*id) + 1
    )]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Number of the token in the file, from 0.
        position: usize,
        /// The id.
        id: u32,
        /// Number of ids.
        vocab: usize,
    },
    /// Not enough for one window to train on and one to validate with.
    #[error(
        "the data has {tokens} tokens, but context {context} needs at least {needed}: {} to train \
         on and as many to validate with",
        needed / 2
    )]
    Short {
        /// Tokens found.
        tokens: usize,
        /// Tokens per sample.
        context: usize,
        /// Tokens needed.
        needed: usize,
    },
}

/// Samples side by side: `[n, context]` ids each, one row after another.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// What the model reads.
    pub input: Vec<u32>,
    /// What comes next at each position.
    pub target: Vec<u32>,
}

/// Token ids, the last tenth of which is kept for validation.
#[derive(Clone, Debug)]
pub struct Corpus {
    tokens: Tokens,
    n_train: usize,
    context: usize,
}

impl Corpus {
    /// Reads `files` in order, or the project's own text if there are none.
    ///
    /// A file is text, of which each byte is a token, unless its name ends in `.bin` (little-endian
    /// u16 ids) or `.u32.bin` (u32). Every id must be below `vocab`.
    pub fn open(files: &[PathBuf], vocab: usize, context: usize) -> Result<Corpus, DataError> {
        let tokens = match files {
            [] => {
                let tokens = Tokens::Bytes(corpus::TEXT.into());
                tokens.check(Path::new("(the project's own text)"), 0, vocab)?;
                tokens
            }
            files => read(files, vocab)?,
        };
        Corpus::from_tokens(tokens, context)
    }

    /// Splits `tokens` into a part to train on and one to validate with.
    pub fn from_tokens(tokens: Tokens, context: usize) -> Result<Corpus, DataError> {
        let window = context.saturating_add(1);
        let needed = window.saturating_mul(2);
        if tokens.len() < needed {
            return Err(DataError::Short { tokens: tokens.len(), context, needed });
        }
        let n_train = tokens.len() - (tokens.len() / 10).max(window);
        Ok(Corpus { tokens, n_train, context })
    }

    /// Number of tokens to train on.
    pub fn n_train(&self) -> usize {
        self.n_train
    }

    /// Number of tokens to validate with.
    pub fn n_validation(&self) -> usize {
        self.tokens.len() - self.n_train
    }

    /// The samples of these numbers within the global batch of `step`.
    pub fn batch(&self, seed: u64, step: u64, samples: Range<u64>) -> Batch {
        let starts = (self.n_train - self.context) as u64;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(step);
        self.windows(samples.map(|sample| {
            rng.set_word_pos(2 * u128::from(sample)); // a draw is two words
            ((u128::from(rng.next_u64()) * u128::from(starts)) >> 64) as usize
        }))
    }

    /// At most `count` windows, evenly spread over the validation part and apart from each other.
    pub fn validation(&self, count: usize) -> Batch {
        let apart = (self.n_validation() - 1) / self.context.max(1);
        let n = count.min(apart);
        let last = self.n_validation() - self.context - 1;
        let step = |i: usize| if n > 1 { i * last / (n - 1) } else { 0 };
        self.windows((0..n).map(|i| self.n_train + step(i)))
    }

    fn windows(&self, starts: impl Iterator<Item = usize>) -> Batch {
        let mut batch = Batch::default();
        for start in starts {
            self.tokens.extend(&mut batch.input, start..start + self.context);
            self.tokens.extend(&mut batch.target, start + 1..start + 1 + self.context);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(n: usize, context: usize) -> Corpus {
        Corpus::from_tokens(Tokens::U32((0..n as u32).collect()), context).unwrap()
    }

    #[test]
    fn a_sample_does_not_depend_on_its_neighbours() {
        let corpus = counting(100_000, 16);
        let whole = corpus.batch(1, 2, 0..12);
        assert_eq!(whole.input.len(), 12 * 16);
        let parts = [corpus.batch(1, 2, 0..5), corpus.batch(1, 2, 5..6), corpus.batch(1, 2, 6..12)];
        assert_eq!(whole.input, parts.clone().map(|part| part.input).concat());
        assert_eq!(whole.target, parts.map(|part| part.target).concat());
        assert_ne!(whole, corpus.batch(2, 2, 0..12));
        assert_ne!(whole, corpus.batch(1, 3, 0..12));
    }

    #[test]
    fn targets_are_the_next_ids_of_the_training_part() {
        let corpus = counting(1000, 8);
        assert_eq!((corpus.n_train(), corpus.n_validation()), (900, 100));
        let mut starts = std::collections::BTreeSet::new();
        for step in 0..500 {
            let batch = corpus.batch(7, step, 0..8);
            for (input, target) in batch.input.iter().zip(&batch.target) {
                assert_eq!(input + 1, *target);
            }
            assert!(batch.target.iter().all(|&id| id < 900));
            starts.extend(batch.input.chunks(8).map(|row| row[0]));
        }
        assert_eq!((starts.first(), starts.last()), (Some(&0), Some(&891)));
    }

    #[test]
    fn validation_windows_lie_apart_in_the_last_tenth() {
        let corpus = counting(1000, 8);
        let batch = corpus.validation(5);
        let starts: Vec<_> = batch.input.chunks(8).map(|row| row[0]).collect();
        assert_eq!(starts, [900, 922, 945, 968, 991]);
        assert_eq!(batch.target.last(), Some(&999));
        let most = corpus.validation(usize::MAX);
        assert_eq!(most.input.len(), 12 * 8);
        assert!(most.input.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn the_least_data_is_two_windows() {
        let corpus = counting(18, 8);
        assert_eq!((corpus.n_train(), corpus.n_validation()), (9, 9));
        assert_eq!(corpus.batch(0, 0, 0..1).input, (0..8).collect::<Vec<_>>());
        assert_eq!(corpus.validation(9).target, (10..18).collect::<Vec<_>>());
        let refusal = Corpus::from_tokens(Tokens::U16(vec![0; 17]), 8).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the data has 17 tokens, but context 8 needs at least 18: 9 to train on and as many to \
             validate with"
        );
        assert!(Corpus::from_tokens(Tokens::U16(vec![0; 17]), usize::MAX).is_err());
    }

    #[test]
    fn without_files_the_project_is_the_text() {
        let corpus = Corpus::open(&[], 256, 64).unwrap();
        assert!(corpus.n_train() > 10_000);
        assert!(Corpus::open(&[], 64, 64).is_err());
    }
}

//! The text a model is trained on: token ids, and the samples that they are cut into.
//!
//! Which sample is seen when follows from (seed, number of the sample since the start of the training)
//! alone, so that the global batch is the same however it is spread over micro-batches, pipes and groups.

pub mod corpus;
mod digest;
mod documents;
mod draw;
mod error;
mod masked;
mod permutation;
mod prepare;
mod prepared;
mod special_tokens;
pub mod tokenizer;
mod tokens;
mod width;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use chimera_core::model::{ModelConfig, Objective};

use crate::formats::checkpoint::Digest;

pub use error::DataError;
pub use masked::Pairs;
pub use prepare::{Preparation, STANDARD_INPUT, discard, prepare};
pub use prepared::{
    Ends, Prepared, Source, TokenizerKind, end_of_text, missing_ids, tokenizer_file_of,
    tokenizer_of,
};
pub use special_tokens::Marks;
pub use tokens::{Tokens, n_ignored};

use draw::Masking;
use permutation::Permutation;
use tokenizer::Tokenizer;

/// Samples side by side, one after another, each as long as the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// How many.
    pub n_samples: usize,
    /// What the model reads of each: `sequence` ids, or what stands before them in a BERT's sample too.
    pub input: Vec<u32>,
    /// What it is to say: the token that comes next at each position, or [`IGNORED`](chimera_core::layers::IGNORED); or
    /// those that are masked, and whether the second segment is from elsewhere.
    pub target: Vec<u32>,
}

impl Batch {
    /// Input and target of each sample.
    pub fn samples(&self) -> impl Iterator<Item = (&[u32], &[u32])> {
        let [input, target] =
            [self.input.len(), self.target.len()].map(|n| (n / self.n_samples.max(1)).max(1));
        self.input.chunks(input).zip(self.target.chunks(target))
    }
}

/// The ids of `files` in order, each below `vocab`, as [`Corpus::open`] reads them.
pub fn read(files: &[PathBuf], vocab: usize) -> Result<Tokens, DataError> {
    let mut tokens = Tokens::open(files)?;
    tokens.check(vocab)?;
    Ok(tokens)
}

/// Token ids to train on and to validate with: the last tenth of them, or others.
#[derive(Debug)]
pub struct Corpus {
    tokens: Tokens,
    /// What is validated with, if it is not the rest of `tokens`.
    held_out: Option<Tokens>,
    tokenizer: Option<Tokenizer>,
    n_train: usize,
    /// Tokens of a window.
    window: usize,
    /// How a BERT's samples are drawn from a window.
    masking: Option<Masking>,
    /// The token behind each document, where what follows it is not foreseen.
    end_of_text: Option<u32>,
    digest: OnceLock<Digest>,
}

impl Corpus {
    /// The data of `files` in order, or the built-in text if there are none, for samples of `sequence` tokens. Validation
    /// is with the data of `held_out`, or if there are none with the last tenth.
    ///
    /// A file is text, of which each byte is a token, unless its name ends in `.bin` (little-endian
    /// u16 ids) or `.u32.bin` (u32). Every id must be in the vocabulary of `model`, which says too what samples
    /// are made of the text. Files are read where they lie, and may be larger than memory.
    pub fn open(
        files: &[PathBuf],
        held_out: &[PathBuf],
        model: &ModelConfig,
        sequence: usize,
    ) -> Result<Corpus, DataError> {
        let tokens = match files {
            [] => Tokens::of_text(corpus::TEXT),
            files => Tokens::open(files)?,
        };
        let tokenizer = match files {
            [] => Some(Tokenizer::Bytes),
            files => tokenizer_of(&[files, held_out].concat())?,
        };
        let held_out = (!held_out.is_empty()).then(|| Tokens::open(held_out)).transpose()?;
        let masking = match model.objective() {
            Objective::NextToken => None,
            Objective::MaskedTokens => Some(Masking::new(model, sequence, tokenizer.as_ref())?),
        };
        let window = masking.as_ref().map_or(sequence, Masking::window);
        let mut corpus = Corpus::split(tokens, held_out, window, sequence)?;
        for tokens in [Some(&mut corpus.tokens), corpus.held_out.as_mut()].into_iter().flatten() {
            match &masking {
                None => tokens.check(model.vocab)?,
                Some(masking) => masking.check(tokens)?,
            }
        }
        Ok(Corpus { tokenizer, masking, end_of_text: model.end_of_text, ..corpus })
    }

    /// Splits `tokens` of an unknown tokenizer into a part to train on and one to validate with.
    pub fn from_tokens(tokens: Tokens, sequence: usize) -> Result<Corpus, DataError> {
        Corpus::split(tokens, None, sequence, sequence)
    }

    /// In windows of `window` tokens, for samples of `sequence`.
    fn split(
        tokens: Tokens,
        held_out: Option<Tokens>,
        window: usize,
        sequence: usize,
    ) -> Result<Corpus, DataError> {
        let least = window.saturating_add(1);
        let n_train = match &held_out {
            None => {
                let needed = least.saturating_mul(2);
                if tokens.len() < needed {
                    return Err(DataError::Short { tokens: tokens.len(), sequence, needed });
                }
                tokens.len() - (tokens.len() / 10).max(least)
            }
            Some(held_out) => {
                for (what, tokens) in
                    [("train on", tokens.len()), ("validate with", held_out.len())]
                {
                    if tokens < least {
                        return Err(DataError::NoSample { what, tokens, sequence, needed: least });
                    }
                }
                tokens.len()
            }
        };
        let (tokenizer, masking, end_of_text, digest) = (None, None, None, OnceLock::new());
        Ok(Corpus { tokens, held_out, tokenizer, n_train, window, masking, end_of_text, digest })
    }

    /// What the ids stand for, where that is known.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Number of tokens to train on.
    pub fn n_train(&self) -> usize {
        self.n_train
    }

    /// Number of tokens to validate with.
    pub fn n_validation(&self) -> usize {
        self.held_out.as_ref().map_or(self.tokens.len() - self.n_train, Tokens::len)
    }

    /// Which data it is, or was when this was first asked: every checkpoint wants to know, and files may be far away.
    ///
    /// # Errors
    /// If a file cannot be read any more.
    pub fn digest(&self) -> io::Result<&Digest> {
        if let Some(known) = self.digest.get() {
            return Ok(known);
        }
        let digest = Digest::of(&self.tokens)?;
        Ok(self.digest.get_or_init(|| digest))
    }

    /// Number of samples of an epoch: windows that lie side by side in the part to train on.
    pub fn n_samples(&self) -> u64 {
        ((self.n_train - 1) / self.window.max(1)) as u64
    }

    /// Whether some targets are ignored.
    pub fn has_ignored(&self) -> bool {
        self.end_of_text.is_some() || self.tokens.has_ignored()
    }

    /// The samples of these numbers since the start of the training. Each epoch goes through all samples
    /// once, in an order of its own, which follows from (seed, epoch).
    pub fn batch(&self, seed: u64, samples: Range<u64>) -> io::Result<Batch> {
        let n = self.n_samples();
        let order = |sample| Permutation::new(n, seed, sample / n).at(sample % n);
        let start = |window| window as usize * self.window;
        match &self.masking {
            None => self.windows(&self.tokens, samples.map(|sample| start(order(sample)))),
            Some(masking) => {
                let windows = samples.map(|sample| (sample, order(sample)));
                pairs(&self.tokens, masking, seed, n, windows, start)
            }
        }
    }

    /// At most `count` windows, evenly spread over the validation part and apart from each other.
    pub fn validation(&self, count: usize) -> io::Result<Batch> {
        let apart = (self.n_validation() - 1) / self.window.max(1);
        let n = count.min(apart);
        let last = self.n_validation() - self.window - 1;
        let step = |i: usize| if n > 1 { i * last / (n - 1) } else { 0 };
        let (tokens, first) = match &self.held_out {
            None => (&self.tokens, self.n_train),
            Some(tokens) => (tokens, 0),
        };
        let start = |i| first + step(i);
        match &self.masking {
            None => self.windows(tokens, (0..n).map(start)),
            Some(masking) => {
                let samples = (0..n as u64).map(|i| (i, i));
                pairs(tokens, masking, 0, n as u64, samples, |i| start(i as usize))
            }
        }
    }

    fn windows(&self, tokens: &Tokens, starts: impl Iterator<Item = usize>) -> io::Result<Batch> {
        let mut batch = Batch::default();
        for start in starts {
            let end = start + self.window;
            batch.n_samples += 1;
            tokens.extend(&mut batch.input, start..end)?;
            tokens.extend_targets(&mut batch.target, start + 1..end + 1, self.end_of_text)?;
        }
        Ok(batch)
    }
}

/// A BERT's samples: numbers, and windows of `n_windows` that begin at `start`.
fn pairs(
    tokens: &Tokens,
    masking: &Masking,
    seed: u64,
    n_windows: u64,
    samples: impl Iterator<Item = (u64, u64)>,
    start: impl Fn(u64) -> usize,
) -> io::Result<Batch> {
    let mut batch = Batch::default();
    for (sample, window) in samples {
        let mut draw = masking.draw(seed, sample);
        let starts = [window, draw.other(window, n_windows)].map(&start);
        draw.write(tokens, starts, &mut batch)?;
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use chimera_core::model::Preset;
    use proptest::prelude::*;

    use super::*;

    fn counting(n: usize, context: usize) -> Corpus {
        Corpus::from_tokens(Tokens::of_ids(&(0..n as u32).collect::<Vec<_>>()), context).unwrap()
    }

    #[test]
    fn a_sample_does_not_depend_on_its_neighbours() {
        let corpus = counting(100_000, 16);
        let batch = |samples| corpus.batch(1, samples).unwrap();
        let whole = batch(20..32);
        assert_eq!(whole.input.len(), 12 * 16);
        let parts = [batch(20..25), batch(25..26), batch(26..32)];
        assert_eq!(whole.input, parts.clone().map(|part| part.input).concat());
        assert_eq!(whole.target, parts.map(|part| part.target).concat());
        assert_ne!(whole, corpus.batch(2, 20..32).unwrap());
        assert_ne!(whole, batch(32..44));
    }

    proptest! {
        #[test]
        fn an_epoch_is_every_sample_once(
            n in 40usize..3000, context in 1usize..20, seed in any::<u64>(), epoch in 0u64..1 << 30,
        ) {
            let corpus = counting(n, context);
            let n_samples = corpus.n_samples();
            let first = epoch * n_samples;
            let batch = corpus.batch(seed, first..first + n_samples).unwrap();
            for (input, target) in batch.input.iter().zip(&batch.target) {
                prop_assert_eq!(input + 1, *target);
            }
            let mut ids = batch.input;
            ids.sort_unstable();
            let n_seen = (corpus.n_train() - 1) / context * context;
            prop_assert!(ids.into_iter().eq(0..n_seen as u32), "each id but the last few once");
        }
    }

    #[test]
    fn validation_windows_lie_apart_in_the_last_tenth() {
        let corpus = counting(1000, 8);
        assert_eq!((corpus.n_train(), corpus.n_validation()), (900, 100));
        let batch = corpus.validation(5).unwrap();
        let starts: Vec<_> = batch.input.chunks(8).map(|row| row[0]).collect();
        assert_eq!(starts, [900, 922, 945, 968, 991]);
        assert_eq!(batch.target.last(), Some(&999));
        let most = corpus.validation(usize::MAX).unwrap();
        assert_eq!(most.input.len(), 12 * 8);
        assert!(most.input.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn the_least_data_is_two_windows() {
        let corpus = counting(18, 8);
        assert_eq!((corpus.n_train(), corpus.n_validation()), (9, 9));
        for sample in 0..3 {
            let batch = corpus.batch(0, sample..sample + 1).unwrap();
            assert_eq!(batch.input, (0..8).collect::<Vec<_>>());
        }
        assert_eq!(corpus.validation(9).unwrap().target, (10..18).collect::<Vec<_>>());
        let refusal = Corpus::from_tokens(Tokens::of_ids(&[0; 17]), 8).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the data has 17 tokens, but sequence 8 needs at least 18: 9 to train on and as many to \
             validate with"
        );
        assert!(Corpus::from_tokens(Tokens::of_ids(&[0; 17]), usize::MAX).is_err());
    }

    #[test]
    fn other_data_to_validate_with_leaves_all_to_train_on() {
        let ids = |range: Range<u32>| Tokens::of_ids(&range.collect::<Vec<_>>());
        let corpus = Corpus::split(ids(0..100), Some(ids(500..550)), 8, 8).unwrap();
        assert_eq!((corpus.n_train(), corpus.n_validation(), corpus.n_samples()), (100, 50, 12));
        let batch = corpus.validation(3).unwrap();
        let starts: Vec<_> = batch.input.chunks(8).map(|row| row[0]).collect();
        assert_eq!(starts, [500, 520, 541]);
        assert!(corpus.batch(1, 0..12).unwrap().target.iter().all(|id| *id < 100));
        for (n, held_out, what) in [(100, 508, "validate with"), (8, 550, "train on")] {
            let refusal = Corpus::split(ids(0..n), Some(ids(500..held_out)), 8, 8).unwrap_err();
            assert_eq!(
                refusal.to_string(),
                format!("the data to {what} has 8 tokens, but sequence 8 needs at least 9")
            );
        }
    }

    #[test]
    fn without_files_the_built_in_text_is_read() {
        let tiny = &Preset::named("tiny").unwrap().config;
        let corpus = Corpus::open(&[], &[], tiny, tiny.context).unwrap();
        assert_eq!(corpus.n_train() + corpus.n_validation(), corpus::TEXT.len());
        assert!(matches!(corpus.tokenizer(), Some(Tokenizer::Bytes)));
        assert!(Corpus::open(&[], &[], &ModelConfig { vocab: 64, ..tiny.clone() }, 128).is_err());
    }
}

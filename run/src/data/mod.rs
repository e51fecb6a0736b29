//! The training text: token ids, and the samples that they are cut into.
//!
//! The sample at each point follows only from the seed and the number of samples since the start of
//! the training. So the global batch is the same however it is spread over micro-batches, pipes and
//! groups.

mod batch;
#[cfg_attr(not(feature = "chat"), path = "no_chat.rs")]
pub mod chat;
pub mod corpus;
mod dataset;
mod digest;
mod draw;
mod error;
mod files;
mod masked;
mod mixture;
mod permutation;
mod preparation;
mod special_tokens;
pub mod text_kind;
pub mod tokenizer;
mod tokens;
mod width;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use chimera_core::model::ModelConfig;
use chimera_formats::checkpoint::Digest;
use preparation::prepared;

pub use batch::Batch;
pub use error::DataError;
pub use files::Files;
pub use masked::Pairs;
pub use preparation::parameters::{Preparation, STANDARD_INPUT};
pub use preparation::prepare::{TEXT_FIELD, n_bytes, prepare};
pub use preparation::prepared::{
    Ends, Prepared, Source, TokenizerKind, end_of_text, missing_ids, tokenizer_file_of,
    tokenizer_of,
};
pub use preparation::prepared_files::PreparedFiles;
pub use special_tokens::Marks;
pub use tokens::{Tokens, n_ignored};

use dataset::{Dataset, open_each};
use draw::Masking;
use files::Reading;
use mixture::Mixture;
use permutation::Permutation;
use tokenizer::Tokenizer;

/// Reads the ids of `files` in order, each below `vocab`, in the formats of [`Corpus::open`].
pub fn read(files: &[PathBuf], vocab: usize) -> Result<Tokens, DataError> {
    let mut tokens = Tokens::open(files)?;
    tokens.check(vocab)?;
    Ok(tokens)
}

/// Token ids for training and for validation. The latter are the last tenth of each dataset, or
/// other files.
#[derive(Debug)]
pub struct Corpus {
    datasets: Vec<Dataset>,
    mixture: Mixture,
    /// The validation data, if it is not the rest of `datasets`.
    held_out: Option<Dataset>,
    tokenizer: Option<Tokenizer>,
    /// Tokens per window.
    window: usize,
    /// Makes BERT samples from windows of tokens.
    masking: Option<Masking>,
    /// The token after each document, if the token that follows it is not predicted.
    end_of_text: Option<u32>,
    document_end: Option<u32>,
    digest: OnceLock<Digest>,
}

impl Corpus {
    /// Opens the data of `files` for samples of `sequence` tokens.
    ///
    /// A file is text, each byte of which is a token, unless its name ends in `.bin` (little-endian
    /// u16 ids) or `.u32.bin` (u32). Every id must be in the vocabulary of `model`, which also
    /// determines the form of the samples. Files are not loaded into memory, and may be larger than
    /// it.
    pub fn open(
        files: &Files<'_>,
        model: &ModelConfig,
        sequence: usize,
    ) -> Result<Corpus, DataError> {
        let &Files { data, weights, validation } = files;
        let Reading { tokenizer, masking } = files.reading(model, sequence)?;
        let check = |mut tokens: Tokens| {
            match &masking {
                None => tokens.check(model.vocab)?,
                Some(masking) => masking.check(&mut tokens)?,
            }
            Ok::<_, DataError>(tokens)
        };
        let window = masking.as_ref().map_or(sequence, Masking::window);
        let held_out = match validation {
            [] => None,
            files => Some(check(Tokens::open(files)?)?),
        };
        let dataset = |tokens| match &held_out {
            None => Dataset::split(check(tokens)?, window, sequence),
            Some(_) => Dataset::to_train_on(check(tokens)?, window, sequence),
        };
        let datasets = match (data, weights) {
            ([], _) => vec![dataset(Tokens::of_text(corpus::TEXT))?],
            (data, None) => vec![dataset(Tokens::open(data)?)?],
            (data, Some(_)) => {
                let of_file = |(file, tokens): (&PathBuf, Tokens)| {
                    dataset(tokens).map_err(|reason| reason.in_mixture(file))
                };
                data.iter().zip(open_each(data)?).map(of_file).collect::<Result<_, _>>()?
            }
        };
        let held_out = held_out.map(|tokens| Dataset::to_validate_with(tokens, window, sequence));
        let mixture = Mixture::new(weights.unwrap_or(&[1.0]));
        let corpus = Corpus::of(datasets, mixture, held_out.transpose()?, window);
        let (end_of_text, document_end) = (model.end_of_text, prepared::document_end(data)?);
        Ok(Corpus { tokenizer, masking, end_of_text, document_end, ..corpus })
    }

    /// Splits `tokens` of an unknown tokenizer into a training part and a validation part.
    pub fn from_tokens(tokens: Tokens, sequence: usize) -> Result<Corpus, DataError> {
        let dataset = Dataset::split(tokens, sequence, sequence)?;
        Ok(Corpus::of(vec![dataset], Mixture::new(&[1.0]), None, sequence))
    }

    /// Splits the data into windows of `window` tokens.
    fn of(
        datasets: Vec<Dataset>,
        mixture: Mixture,
        held_out: Option<Dataset>,
        window: usize,
    ) -> Corpus {
        Corpus {
            datasets,
            mixture,
            held_out,
            window,
            tokenizer: None,
            masking: None,
            end_of_text: None,
            document_end: None,
            digest: OnceLock::new(),
        }
    }

    /// Returns the tokenizer of the ids, if it is known.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Refuses data for a model with the tokenizer `own` if ids stand for other texts. For a BERT
    /// also refuses data without a known tokenizer if samples would use other special tokens than
    /// this tokenizer has.
    ///
    /// # Errors
    /// Names the difference.
    pub fn check_model(&self, own: &Tokenizer) -> Result<(), DataError> {
        match (&self.tokenizer, &self.masking) {
            (Some(of_data), _) => Ok(own.check_data(of_data)?),
            (None, Some(masking)) => masking.check_model(own),
            (None, None) => Ok(()),
        }
    }

    /// Returns the token after each document of the training data, if the descriptions of all files
    /// name the same one.
    pub fn document_end(&self) -> Option<u32> {
        self.document_end
    }

    /// Number of training tokens.
    pub fn n_train(&self) -> usize {
        self.datasets.iter().map(|dataset| dataset.n_train).sum()
    }

    /// Number of validation tokens.
    pub fn n_validation(&self) -> usize {
        self.held_out().map(Dataset::n_validation).sum()
    }

    /// Returns the datasets for validation.
    fn held_out(&self) -> impl Iterator<Item = &Dataset> {
        let datasets = if self.held_out.is_some() { &[][..] } else { &self.datasets };
        self.held_out.iter().chain(datasets)
    }

    /// Returns the digest of the data, computed at the first call: every checkpoint needs it, and
    /// the files may be on a slow disk.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn digest(&self) -> io::Result<&Digest> {
        if let Some(known) = self.digest.get() {
            return Ok(known);
        }
        let digest = digest::digest_of_all(self.datasets.iter().map(|dataset| &dataset.tokens))?;
        Ok(self.digest.get_or_init(|| digest))
    }

    /// Returns the number of epochs of each dataset in the first `n_samples` of the training.
    pub fn epochs(&self, n_samples: u64) -> Vec<f64> {
        let counts = self.mixture.counts(n_samples).into_iter();
        counts.zip(&self.datasets).map(|(n, of)| n as f64 / of.n_samples() as f64).collect()
    }

    /// Returns true if some targets may be ignored.
    pub fn has_ignored(&self) -> bool {
        self.end_of_text.is_some() || self.datasets.iter().any(Dataset::has_ignored)
    }

    /// Returns true if some validation targets may be ignored.
    pub fn validation_has_ignored(&self) -> bool {
        self.end_of_text.is_some() || self.held_out().any(Dataset::has_ignored)
    }

    /// Returns true if any training token is a target.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn has_targets(&self) -> io::Result<bool> {
        if !self.has_ignored() {
            return Ok(true);
        }
        for dataset in &self.datasets {
            if dataset.tokens.has_targets(dataset.n_train, self.end_of_text)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the samples of these numbers since the start of the training. Each epoch goes
    /// through all samples of a dataset once, in an order that follows from (seed, dataset, epoch).
    pub fn batch(&self, seed: u64, samples: Range<u64>) -> io::Result<Batch> {
        let mut batch = Batch::default();
        for sample in samples {
            let (nth, number) = self.mixture.locate(sample);
            let dataset = &self.datasets[nth];
            let n = dataset.n_samples();
            let key = seed.wrapping_add(nth as u64);
            let window = Permutation::new(n, key, number / n).at(number % n);
            let start = |window| window as usize * self.window;
            self.add(&mut batch, &dataset.tokens, (seed, sample), (window, n), start)?;
        }
        Ok(batch)
    }

    /// Returns at most `count` validation windows, evenly spread and without overlap. Each of
    /// several datasets has its share of them, and at least one.
    pub fn validation(&self, count: usize) -> io::Result<Batch> {
        let counts = match &self.held_out {
            Some(_) => vec![count as u64],
            None => self.mixture.counts(count as u64),
        };
        let mut batch = Batch::default();
        for (dataset, count) in self.held_out().zip(counts) {
            let starts = dataset.validation(count.max(1) as usize);
            let n = starts.len() as u64;
            for i in 0..n {
                let start = |window| starts[window as usize];
                self.add(&mut batch, &dataset.tokens, (0, i), (i, n), start)?;
            }
        }
        Ok(batch)
    }

    /// Appends the sample of window number `window` out of `n_windows`, which begin at `start`.
    /// Random choices follow from `seed` and `sample`.
    fn add(
        &self,
        batch: &mut Batch,
        tokens: &Tokens,
        (seed, sample): (u64, u64),
        (window, n_windows): (u64, u64),
        start: impl Fn(u64) -> usize,
    ) -> io::Result<()> {
        if let Some(masking) = &self.masking {
            let mut draw = masking.draw(seed, sample);
            let starts = [window, draw.other(window, n_windows)].map(start);
            return draw.write(tokens, starts, batch);
        }
        let start = start(window);
        let end = start + self.window;
        batch.n_samples += 1;
        tokens.extend(&mut batch.input, start..end)?;
        tokens.extend_targets(&mut batch.target, start + 1..end + 1, self.end_of_text)
    }
}

#[cfg(test)]
mod tests;

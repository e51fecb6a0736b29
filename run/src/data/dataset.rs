//! A dataset: tokens of which the first ones are for training and the last ones for validation.

use std::path::PathBuf;
use std::slice::from_ref;

use super::width::Width;
use super::{DataError, Tokens};

/// Training tokens, followed by validation tokens.
#[derive(Debug)]
pub(super) struct Dataset {
    pub(super) tokens: Tokens,
    /// Number of training tokens.
    pub(super) n_train: usize,
    /// Tokens per window.
    window: usize,
}

impl Dataset {
    /// Keeps the last tenth of `tokens` for validation; windows have `window` tokens, for samples
    /// of `sequence`.
    pub(super) fn split(
        tokens: Tokens,
        window: usize,
        sequence: usize,
    ) -> Result<Dataset, DataError> {
        let least = window.saturating_add(1);
        let needed = least.saturating_mul(2);
        if tokens.len() < needed {
            return Err(DataError::Short { tokens: tokens.len(), sequence, needed });
        }
        let n_train = tokens.len() - (tokens.len() / 10).max(least);
        Ok(Dataset { tokens, n_train, window })
    }

    /// Trains on all of `tokens`.
    pub(super) fn to_train_on(
        tokens: Tokens,
        window: usize,
        sequence: usize,
    ) -> Result<Dataset, DataError> {
        check_length(&tokens, "train on", window, sequence)?;
        Ok(Dataset { n_train: tokens.len(), tokens, window })
    }

    /// Validates with all of `tokens`.
    pub(super) fn to_validate_with(
        tokens: Tokens,
        window: usize,
        sequence: usize,
    ) -> Result<Dataset, DataError> {
        check_length(&tokens, "validate with", window, sequence)?;
        Ok(Dataset { tokens, n_train: 0, window })
    }

    /// Returns true if some tokens are not targets.
    pub(super) fn has_ignored(&self) -> bool {
        self.tokens.are_targets().is_some()
    }

    /// Number of validation tokens.
    pub(super) fn n_validation(&self) -> usize {
        self.tokens.len() - self.n_train
    }

    /// Number of windows that fit side by side into the training tokens.
    pub(super) fn n_samples(&self) -> u64 {
        (self.n_train.saturating_sub(1) / self.window.max(1)) as u64
    }

    /// Returns the starts of at most `count` windows that are evenly spread over the validation
    /// tokens and do not overlap.
    pub(super) fn validation(&self, count: usize) -> Vec<usize> {
        let apart = self.n_validation().saturating_sub(1) / self.window.max(1);
        let n = count.min(apart);
        let last = self.n_validation().saturating_sub(self.window + 1);
        let step = |i: usize| if n > 1 { i * last / (n - 1) } else { 0 };
        (0..n).map(|i| self.n_train + step(i)).collect()
    }
}

/// Opens the tokens of each file. All must have the same width: text, or ids of one size.
pub(super) fn open_each(files: &[PathBuf]) -> Result<Vec<Tokens>, DataError> {
    let each = files.iter().map(|file| Tokens::open(from_ref(file)));
    let each = each.collect::<Result<Vec<Tokens>, DataError>>()?;
    let other = each.iter().position(|tokens| tokens.width() != each[0].width());
    match other {
        None => Ok(each),
        Some(nth) => {
            let (found, expected) = (each[nth].width().name(), each[0].width().name());
            Err(DataError::Mixed { path: files[nth].clone(), found, expected })
        }
    }
}

/// Refuses validation files that are not stored in the same format as `data`.
pub(super) fn check_validation(data: &[PathBuf], validation: &[PathBuf]) -> Result<(), DataError> {
    let width = data.first().map_or(Width::U8, |file| Width::of(file)); // the built-in text
    match validation.iter().find(|file| Width::of(file) != width) {
        None => Ok(()),
        Some(path) => {
            let (found, expected) = (Width::of(path).name(), width.name());
            Err(DataError::OtherValidation { path: path.clone(), found, expected })
        }
    }
}

fn check_length(
    tokens: &Tokens,
    what: &'static str,
    window: usize,
    sequence: usize,
) -> Result<(), DataError> {
    let (tokens, needed) = (tokens.len(), window.saturating_add(1));
    if tokens < needed {
        Err(DataError::NoSample { what, tokens, sequence, needed })
    } else {
        Ok(())
    }
}

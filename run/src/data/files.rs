//! The files of a corpus, and the facts about them that are known before they are read.

use std::path::PathBuf;

use chimera_core::model::{ModelConfig, Objective};

use super::dataset::check_validation;
use super::draw::Masking;
use super::preparation::prepared::{end_of_text, missing_ids, tokenizer_of};
use super::tokenizer::Tokenizer;
use super::{Corpus, DataError};

/// The files of a corpus.
#[derive(Clone, Copy, Default, Debug)]
pub struct Files<'f> {
    /// Training files; empty for the built-in text.
    pub data: &'f [PathBuf],
    /// The weight of each file in a mixture. Without weights all files are one dataset, in order.
    pub weights: Option<&'f [f64]>,
    /// Validation files in the same format; empty for the last tenth of each dataset.
    pub validation: &'f [PathBuf],
}

/// Parameters for reading files for a model.
pub(super) struct Reading {
    /// The tokenizer of the ids, if it is known.
    pub(super) tokenizer: Option<Tokenizer>,
    /// Makes the samples of a BERT.
    pub(super) masking: Option<Masking>,
}

impl Files<'_> {
    /// Returns the token after each document.
    ///
    /// # Errors
    /// If the documents are not kept apart, or not all by the same token.
    pub fn end_of_text(&self) -> Result<u32, DataError> {
        end_of_text(&[self.data, self.validation].concat())
    }

    /// Refuses data that cannot give samples of `sequence` tokens for `model`, without reading the
    /// files. It checks the names of the files, the descriptions that exist, and the built-in text.
    pub fn check_unread(
        &self,
        model: &ModelConfig,
        sequence: usize,
        has_documents: bool,
    ) -> Result<(), DataError> {
        let is_here = missing_ids(self.data).or(missing_ids(self.validation)).is_none();
        if has_documents && is_here {
            self.end_of_text()?;
        }
        match (self.data, self.validation) {
            ([], []) => Corpus::open(self, model, sequence).map(drop),
            _ => self.reading(model, sequence).map(drop),
        }
    }

    /// Determines how the files are to be read.
    pub(super) fn reading(
        &self,
        model: &ModelConfig,
        sequence: usize,
    ) -> Result<Reading, DataError> {
        check_validation(self.data, self.validation)?;
        let tokenizer = match self.data {
            [] => Some(Tokenizer::Bytes),
            data => tokenizer_of(&[data, self.validation].concat())?,
        };
        let masking = match model.objective() {
            Objective::NextToken => None,
            Objective::MaskedTokens => Some(Masking::new(model, sequence, tokenizer.as_ref())?),
        };
        Ok(Reading { tokenizer, masking })
    }
}

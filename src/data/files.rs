//! The files of a corpus, and what is known of them before they are read.

use std::path::PathBuf;

use chimera_core::model::{ModelConfig, Objective};

use super::dataset::check_validation;
use super::draw::Masking;
use super::prepared::{end_of_text, missing_ids, tokenizer_of};
use super::tokenizer::Tokenizer;
use super::{Corpus, DataError};

/// The files of a corpus.
#[derive(Clone, Copy, Default, Debug)]
pub struct Files<'f> {
    /// Files to train on; if there are none, the built-in text.
    pub data: &'f [PathBuf],
    /// The weight of each of them in a mixture; without, they are one dataset, one after the other.
    pub weights: Option<&'f [f64]>,
    /// Files like those of the data to validate with; if there are none, the last tenth of each dataset.
    pub validation: &'f [PathBuf],
}

/// How files are read for a model.
pub(super) struct Reading {
    /// What the ids stand for, where that is known.
    pub(super) tokenizer: Option<Tokenizer>,
    /// How a BERT's samples are drawn.
    pub(super) masking: Option<Masking>,
}

impl Files<'_> {
    /// The token behind each document.
    ///
    /// # Errors
    /// If their documents are not kept apart, or not by the same token.
    pub fn end_of_text(&self) -> Result<u32, DataError> {
        end_of_text(&[self.data, self.validation].concat())
    }

    /// Refuses what samples of `sequence` tokens for `model` cannot be made of, whatever is in the files: it follows from
    /// their names, from the descriptions that are here, and from the built-in text.
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

    /// How they are to be read.
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

//! Errors in data.

use std::path::{Path, PathBuf};

use super::special_tokens::MARKS;
use super::tokenizer::TokenizerError;

/// A reason to refuse data (exit code 2).
#[derive(thiserror::Error, Debug)]
pub enum DataError {
    /// The file system cannot read the file.
    #[error("cannot read data file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: std::io::Error,
    },
    /// Not a file, but a folder, a device or a pipe.
    #[error("data file {} is not a regular file: name each file", path.display())]
    NotAFile {
        /// The path as it was named.
        path: PathBuf,
    },
    /// The file has no tokens.
    #[error("data file {} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The token file ends within a token.
    #[error(
        "data file {} has {bytes} bytes, not a multiple of the {width} bytes of a token id",
        path.display()
    )]
    Torn {
        /// The file.
        path: PathBuf,
        /// Size of the file.
        bytes: u64,
        /// Bytes per token id.
        width: usize,
    },
    /// The corpus mixes text and token files, or ids of two widths.
    #[error("data file {} holds {found}, but the files before it hold {expected}", path.display())]
    Mixed {
        /// The first file of another kind.
        path: PathBuf,
        /// Kind of the file.
        found: &'static str,
        /// The kind of the files before it.
        expected: &'static str,
    },
    /// The data has text and the validation data token ids, or the reverse.
    #[error(
        "validation file {} holds {found}, but the data to train on holds {expected}: name files like those of `data`, \
         made with the same tokenizer",
        path.display()
    )]
    OtherValidation {
        /// The first file of another kind.
        path: PathBuf,
        /// Kind of the file.
        found: &'static str,
        /// The kind of the data.
        expected: &'static str,
    },
    /// An id is not in the vocabulary of the model.
    #[error(
        "data file {}: token {position} has id {id}, but the vocabulary has {vocab} ids: \
         choose vocab {} or more, or prepare the data with the tokenizer of the model",
        path.display(), u64::from(*highest) + 1
    )]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Index of the token in the file, from 0.
        position: usize,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
        /// The highest id in all data.
        highest: u32,
    },
    /// An id is one of those that a BERT reserves for special tokens.
    #[error(
        "data file {}: token {position} has id {id}, but of {vocab} ids a BERT keeps the last {} for [PAD], \
         [CLS], [SEP] and [MASK]: choose vocab {} or more",
        path.display(), MARKS, *highest as usize + 1 + MARKS
    )]
    MarksVocabulary {
        /// The file.
        path: PathBuf,
        /// Index of the token in the file, from 0.
        position: usize,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
        /// The highest id in all data.
        highest: u32,
    },
    /// A text for a tokenizer is not UTF-8.
    #[error(
        "text {} is not UTF-8 at byte {position}: choose --tokenizer bytes, or convert it",
        path.display()
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not UTF-8.
        position: u64,
    },
    /// The description of prepared data is invalid, or belongs to other data.
    #[error("{}: {reason}", path.display())]
    Prepared {
        /// The description.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
    /// The tokenizer of prepared data cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The vocabulary has no room for the special tokens of BERT samples.
    #[error(
        "the vocabulary has {vocab} ids, but a BERT needs {needed}: those of the text, and [PAD], [CLS], [SEP] \
         and [MASK]: choose vocab {needed} or more"
    )]
    Marks {
        /// Size of the vocabulary.
        vocab: usize,
        /// Number of ids needed.
        needed: usize,
    },
    /// The special ids of a BERT were guessed, and the model has others.
    #[error(
        "the data does not describe its ids: {used:?} would be [PAD], [CLS], [SEP] and [MASK], but to the model's \
         tokenizer these are {own:?}: `chimera prepare` its text with --tokenizer and the model's tokenizer.json"
    )]
    OtherMarks {
        /// The ids that samples would use.
        used: [u32; 4],
        /// The ids in the model's tokenizer.
        own: [u32; 4],
    },
    /// Samples are too short for two segments and their special tokens.
    #[error(
        "a BERT's samples are two segments and three marks: choose sequence {least} or more, not {sequence}"
    )]
    Sequence {
        /// Tokens per sample.
        sequence: usize,
        /// The shortest length.
        least: usize,
    },
    /// The data is too short for one sample of a BERT.
    #[error("the data has {tokens} tokens, but a sample takes {window} of them")]
    Pair {
        /// Tokens found.
        tokens: usize,
        /// Text tokens in a sample.
        window: usize,
    },
    /// The data is too short for one training window and one validation window.
    #[error(
        "the data has {tokens} tokens, but sequence {sequence} needs at least {needed}: {} for \
         training and as many for validation",
        needed / 2
    )]
    Short {
        /// Tokens found.
        tokens: usize,
        /// Tokens per sample.
        sequence: usize,
        /// Tokens needed.
        needed: usize,
    },
    /// One file of a mixture cannot be trained on.
    #[error("data file {} of the mixture: {reason}", path.display())]
    InMixture {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: Box<DataError>,
    },
    /// A folder has no files to read.
    #[error("the folder {} has no file: name one with text", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A line of a JSONL file is not a document.
    #[error("line {line} of {}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: u64,
        /// The problem.
        reason: String,
    },
    /// The data has no sample for training, or none for validation.
    #[error(
        "the data to {what} has {tokens} tokens, but sequence {sequence} needs at least {needed}"
    )]
    NoSample {
        /// The purpose of the data.
        what: &'static str,
        /// Tokens found.
        tokens: usize,
        /// Tokens per sample.
        sequence: usize,
        /// Tokens needed.
        needed: usize,
    },
}

impl DataError {
    /// Adds the name of the file of a mixture, unless the error has one.
    pub(super) fn in_mixture(self, path: &Path) -> DataError {
        match self {
            DataError::Short { .. } | DataError::NoSample { .. } => {
                DataError::InMixture { path: path.to_path_buf(), reason: Box::new(self) }
            }
            named => named,
        }
    }
}

//! What can be wrong with data.

use std::path::{Path, PathBuf};

use super::special_tokens::MARKS;
use super::tokenizer::TokenizerError;

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
        /// The kind of the files before it.
        expected: &'static str,
    },
    /// Text to validate a model of token ids with, or the reverse.
    #[error(
        "validation file {} holds {found}, but the data to train on holds {expected}: name files like those of `data`, \
         made with the same tokenizer",
        path.display()
    )]
    OtherValidation {
        /// The first file of another kind.
        path: PathBuf,
        /// Its kind.
        found: &'static str,
        /// The kind of the data.
        expected: &'static str,
    },
    /// An id that the model does not know.
    #[error(
        "data file {}: token {position} has id {id}, but the vocabulary has {vocab} ids: \
         choose vocab {} or more, or prepare the data with the tokenizer of the model",
        path.display(), u64::from(*highest) + 1
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
        /// The highest id of all data.
        highest: u32,
    },
    /// An id that a BERT has no room for below its marks.
    #[error(
        "data file {}: token {position} has id {id}, but of {vocab} ids a BERT keeps the last {} for [PAD], \
         [CLS], [SEP] and [MASK]: choose vocab {} or more",
        path.display(), MARKS, *highest as usize + 1 + MARKS
    )]
    MarksVocabulary {
        /// The file.
        path: PathBuf,
        /// Number of the token in the file, from 0.
        position: usize,
        /// The id.
        id: u32,
        /// Number of ids.
        vocab: usize,
        /// The highest id of all data.
        highest: u32,
    },
    /// A text that a tokenizer is to cut.
    #[error(
        "text {} is not UTF-8 at byte {position}: choose --tokenizer bytes, or convert it",
        path.display()
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// Where it ceases to be text.
        position: u64,
    },
    /// A description of prepared data that is none, or is not of this data.
    #[error("{}: {reason}", path.display())]
    Prepared {
        /// The description.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer of prepared data.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A vocabulary without room for the marks of a BERT's samples.
    #[error(
        "the vocabulary has {vocab} ids, but a BERT needs {needed}: those of the text, and [PAD], [CLS], [SEP] \
         and [MASK]: choose vocab {needed} or more"
    )]
    Marks {
        /// Number of ids.
        vocab: usize,
        /// Number of ids needed.
        needed: usize,
    },
    /// Ids of a BERT's marks that are a guess, and other ones of the model.
    #[error(
        "the data does not say what its ids stand for: {used:?} would be [PAD], [CLS], [SEP] and [MASK], but to the \
         model's tokenizer these are {own:?}: `chimera prepare` its text with --tokenizer and the model's tokenizer.json"
    )]
    OtherMarks {
        /// The ids that samples would have.
        used: [u32; 4],
        /// The ids that they have in the tokenizer.
        own: [u32; 4],
    },
    /// Samples without room for two segments and their marks.
    #[error(
        "a BERT's samples are two segments and three marks: choose sequence {least} or more, not {sequence}"
    )]
    Sequence {
        /// Tokens per sample.
        sequence: usize,
        /// The least.
        least: usize,
    },
    /// Not enough for one sample of a BERT.
    #[error("the data has {tokens} tokens, but a sample takes {window} of them")]
    Pair {
        /// Tokens found.
        tokens: usize,
        /// Tokens of text in a sample.
        window: usize,
    },
    /// Not enough for one window to train on and one to validate with.
    #[error(
        "the data has {tokens} tokens, but sequence {sequence} needs at least {needed}: {} to train \
         on and as many to validate with",
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
    /// A file of a mixture cannot be trained on by itself.
    #[error("data file {} of the mixture: {reason}", path.display())]
    InMixture {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Box<DataError>,
    },
    /// A folder has nothing to read.
    #[error("the folder {} has no file: name one with text", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A line of a JSONL file is no document.
    #[error("line {line} of {}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// There is not one sample to train on, or none to validate with.
    #[error(
        "the data to {what} has {tokens} tokens, but sequence {sequence} needs at least {needed}"
    )]
    NoSample {
        /// What it is for.
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
    /// Names the file of a mixture, unless the refusal does.
    pub(super) fn in_mixture(self, path: &Path) -> DataError {
        match self {
            DataError::Short { .. } | DataError::NoSample { .. } => {
                DataError::InMixture { path: path.to_path_buf(), reason: Box::new(self) }
            }
            named => named,
        }
    }
}

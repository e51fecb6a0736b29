//! The parameters for turning text into token ids.

use std::path::PathBuf;

/// The name of standard input among the texts.
pub const STANDARD_INPUT: &str = "-";

/// Parameters for turning text into token ids.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// `bytes`, `gpt2`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
    /// The field with the text in the lines of a JSONL file.
    pub field: String,
    /// The field with a prompt, which comes before the text and whose tokens are not targets.
    pub prompt_field: Option<String>,
    /// Whether the lines of JSONL files are chats.
    pub chat: bool,
    /// The template of the chats, if not the tokenizer's own.
    pub chat_template: Option<PathBuf>,
    /// Token after each document, if not the tokenizer's usual one. If it is set, a file is a
    /// document too.
    pub end_of_text: Option<String>,
    /// Whether the tokens that the tokenizer puts before a text come before each document. If so, a
    /// file is a document too.
    pub begin_of_text: bool,
}

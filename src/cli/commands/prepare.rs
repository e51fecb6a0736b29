//! `chimera prepare`: converts text to token ids.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::builder::StringValueParser;
use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::parts::terminal::console::{print, tell};
use crate::cli::parts::terminal::downloads::tokenizer_of;
use crate::cli::parts::terminal::offered::offered;
use crate::cli::parts::terminal::output::written_path;
use crate::cli::parts::terminal::patterns::matching;
use crate::cli::parts::terminal::signals::{STOPPED, on_signal};
use crate::data::prepare;
use crate::data::{Preparation, PreparedFiles, TEXT_FIELD, n_bytes};

/// Turns text into files of token ids
#[derive(Args)]
pub(crate) struct Prepare {
    /// Text files in order, folders (each file is a document), `.jsonl` files (each line is a document), quoted patterns
    /// such as "part-*.txt", or `-` for standard input. If there are documents, each text file is one too
    #[arg(value_name = "TEXT", required = true)]
    texts: Vec<PathBuf>,
    /// Tokenizer: bytes, gpt2 (built in), a `tokenizer.json` file or that of a model on a hub (org/name)
    #[arg(long, value_name = "NAME|FILE", default_value = "bytes")]
    #[arg(value_hint = ValueHint::AnyPath, hide_possible_values = true)]
    #[arg(value_parser = offered(StringValueParser::new(), || vec!["bytes", "gpt2"]))]
    tokenizer: String,
    /// Field of a `.jsonl` file's lines that holds the text
    #[arg(long, value_name = "NAME", default_value = TEXT_FIELD)]
    field: String,
    /// Field of a prompt, which comes before the text and has no loss
    #[arg(long, value_name = "NAME")]
    prompt_field: Option<String>,
    /// Treat each line of `.jsonl` files as a chat: the tokenizer's chat template renders its `messages`, and only the
    /// assistant's answers are trained
    #[arg(long, conflicts_with_all = ["field", "prompt_field"])]
    chat: bool,
    /// Chat template file [default: chat_template.jinja, or `chat_template` in tokenizer_config.json, beside the
    /// tokenizer.json]
    #[arg(long, value_name = "FILE", requires = "chat")]
    chat_template: Option<PathBuf>,
    /// Token after each document; each file is then a document [default: the tokenizer's own, if a folder or a `.jsonl` file
    /// has documents]
    #[arg(long, value_name = "TOKEN")]
    end_of_text: Option<String>,
    /// Begin each document with the begin-of-text token of the tokenizer.json; each file is then a document
    #[arg(long)]
    begin_of_text: bool,
    /// File for the ids: `.bin` for ids of two bytes, `.u32.bin` for ids of four
    #[arg(short, long, value_name = "FILE", value_parser = written_path())]
    out: PathBuf,
}

impl Prepare {
    pub(crate) fn run(self) -> Result<()> {
        let texts = matching(&self.texts)?;
        let bar = match n_bytes(&texts) {
            None => ProgressBar::no_length(), // standard input
            Some(bytes) => ProgressBar::new(bytes),
        }; // hidden where there is no terminal
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
        {
            bar.set_style(style);
        }
        let out = Arc::new(PreparedFiles::new(&self.out));
        let interrupted = out.clone();
        on_signal(move || {
            interrupted.discard();
            std::process::exit(STOPPED);
        })?;
        let how = Preparation {
            tokenizer: tokenizer_of(self.tokenizer)?,
            field: self.field,
            prompt_field: self.prompt_field,
            chat: self.chat,
            chat_template: self.chat_template,
            end_of_text: self.end_of_text,
            begin_of_text: self.begin_of_text,
        };
        let start = Instant::now();
        let prepared = prepare(&texts, &how, &out, |bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let prepared = prepared?;
        let bytes: u64 = prepared.sources.iter().map(|source| source.bytes).sum();
        let rate = prepared.tokens as f64 / start.elapsed().as_secs_f64();
        tell(format_args!("{rate:.0} tokens a second"));
        let documents = prepared
            .end_of_text
            .map(|ends| format!(", {} documents, token {} after each", ends.documents, ends.token));
        let targets = prepared.targets.map(|n| format!(", of which {n} are targets,"));
        print(format!(
            "{}: {} tokens{} of {bytes} bytes of text ({:.2} bytes per token), vocabulary {} of {}{}",
            self.out.display(),
            prepared.tokens,
            targets.unwrap_or_default(),
            bytes as f64 / prepared.tokens as f64,
            prepared.vocab,
            prepared.name(),
            documents.unwrap_or_default(),
        ))
    }
}

//! `chimera prepare`: text to token ids.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::StringValueParser;
use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::parts::console::print;
use crate::cli::parts::offered::offered;
use crate::data::{STANDARD_INPUT, discard, prepare};

/// Cuts text into tokens to train on, and describes them in a file beside
#[derive(Args)]
pub(crate) struct Prepare {
    /// Text files, in order; `-` is standard input
    #[arg(value_name = "TEXT", required = true)]
    texts: Vec<PathBuf>,
    /// bytes, gpt2 (whose vocabulary is built in) or a `tokenizer.json` file
    #[arg(long, value_name = "NAME|FILE", default_value = "bytes")]
    #[arg(value_hint = ValueHint::AnyPath, hide_possible_values = true)]
    #[arg(value_parser = offered(StringValueParser::new(), || vec!["bytes", "gpt2"]))]
    tokenizer: String,
    /// Where to write: ids of two bytes into `.bin`, of four into `.u32.bin`
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Prepare {
    pub(crate) fn run(self) -> Result<()> {
        let size = |path: &PathBuf| Some(path.metadata().ok()?.len());
        let bar = match self.texts.iter().any(|path| path == Path::new(STANDARD_INPUT)) {
            true => ProgressBar::no_length(),
            false => ProgressBar::new(self.texts.iter().filter_map(size).sum()),
        }; // hidden where there is no terminal
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
        {
            bar.set_style(style);
        }
        let out = self.out.clone();
        ctrlc::set_handler(move || {
            discard(&out);
            std::process::exit(130);
        })?;
        let prepared = prepare(&self.texts, &self.tokenizer, &self.out, |bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let prepared = prepared?;
        let bytes: u64 = prepared.sources.iter().map(|source| source.bytes).sum();
        print(format!(
            "{}: {} tokens of {bytes} bytes of text ({:.2} bytes per token), vocabulary {} of {}",
            self.out.display(),
            prepared.tokens,
            bytes as f64 / prepared.tokens as f64,
            prepared.vocab,
            prepared.name(),
        ))
    }
}

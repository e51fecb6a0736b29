//! `chimera generate`: text from a trained model.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use chimera_core::layers::Layers;
use clap::builder::StringValueParser;
use clap::{Args, ValueHint};
use serde_json::json;

use crate::cli::parts::console::print;
use crate::cli::parts::model;
use crate::cli::parts::offered::{device_name, offered};
use crate::data::tokenizer::{Stream, Tokenizer};
use crate::device::{Compute, Device, OpenDevice, Precision};
use crate::formats::hf::Pretrained;
use crate::run::evaluate::{CausalLm, Sampling, must_foresee};

/// Continues a text with a trained model
#[derive(Args)]
pub(crate) struct Generate {
    /// Folder of the model: a run, a checkpoint, or a folder of `train --save` or of Hugging Face (config.json,
    /// model.safetensors) [default: the newest run in `runs` with a model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// What is continued: text, or token ids where there is no tokenizer
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// `bytes`, `gpt2`, a tokenizer.json file, or `ids` for numbers [default: the tokenizer.json beside the
    /// model, or that of the data which a checkpoint was trained on; else by the vocabulary: 256 is bytes, 50257
    /// gpt2, any other ids]
    #[arg(long, value_name = "NAME")]
    #[arg(value_hint = ValueHint::AnyPath, hide_possible_values = true)]
    #[arg(value_parser = offered(StringValueParser::new(), || vec!["bytes", "gpt2", "ids"]))]
    tokenizer: Option<String>,
    /// Number of tokens to add
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    tokens: usize,
    /// What logits are divided by; 0 takes the likeliest token each time
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    #[arg(allow_negative_numbers = true)]
    temperature: f64,
    /// Draws among the K likeliest tokens [default: all]
    #[arg(long, value_name = "K", value_parser = count)]
    top_k: Option<usize>,
    /// Draws among the fewest likeliest tokens that have probability P together
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    top_p: f64,
    /// Key of the draws
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Where to compute: cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    #[arg(value_parser = device_name(), hide_possible_values = true)]
    device: Device,
    /// Prints the ids too, as JSON
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(crate) fn run(self) -> Result<()> {
        let loaded = model::load(self.model.as_deref())?;
        must_foresee(&loaded.model.config)?;
        let tokenizer = loaded.tokenizer(self.tokenizer.as_deref())?;
        let vocab = loaded.model.config.vocab;
        let prompt = encode(&self.prompt, tokenizer.as_ref(), vocab).context("--prompt")?;
        let how = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
            window: Some(loaded.sequence),
        };
        let device = OpenDevice::open(self.device, 0, Precision::F32)?;
        let text = (!self.json).then(|| Text::new(tokenizer.as_ref()));
        let ids = device.run(Continue {
            read: loaded.model,
            prompt: &prompt,
            count: self.tokens,
            how: &how,
            text,
        })?;
        if self.json {
            let text = match &tokenizer {
                Some(tokenizer) => tokenizer.decode(&ids),
                None => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
            };
            let (prompt, added) = ids.split_at(prompt.len());
            print(format!("{:#}", json!({ "prompt": prompt, "ids": added, "text": text })))?;
        }
        Ok(())
    }
}

/// A prompt continued by so many tokens.
struct Continue<'g> {
    read: Pretrained,
    prompt: &'g [u32],
    count: usize,
    how: &'g Sampling,
    /// What is shown under way.
    text: Option<Text<'g>>,
}

impl Compute for Continue<'_> {
    type Output = Result<Vec<u32>>;

    fn on<K: Layers>(mut self, devices: &[K]) -> Self::Output {
        let Pretrained { config, weights, .. } = self.read;
        let model = CausalLm::new(devices[0].clone(), &config, &weights)?;
        drop(weights);
        let mut show = |ids: &[u32]| self.text.as_mut().map_or(Ok(()), |text| text.push(ids));
        show(self.prompt)?;
        let ids = model.sample(self.prompt, self.count, self.how, |id| show(&[id]))?;
        self.text.map_or(Ok(()), Text::end)?;
        Ok(ids)
    }
}

/// The text on standard output, as far as it is known.
struct Text<'t> {
    /// `None` where ids are shown as numbers.
    stream: Option<Stream<'t>>,
    /// What is not written yet: blanks, which are left out at the end.
    blanks: String,
}

impl<'t> Text<'t> {
    fn new(tokenizer: Option<&'t Tokenizer>) -> Text<'t> {
        Text { stream: tokenizer.map(Stream::new), blanks: String::new() }
    }

    fn push(&mut self, ids: &[u32]) -> Result<()> {
        let text = match &mut self.stream {
            Some(stream) => stream.push(ids),
            None => ids.iter().map(|id| format!("{id} ")).collect(),
        };
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        // A terminal obeys control characters.
        let shown = text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}");
        self.blanks += &shown;
        let end = self.blanks.trim_end().len();
        let mut out = std::io::stdout().lock();
        out.write_all(&self.blanks.as_bytes()[..end])?;
        out.flush()?; // a line may take long
        self.blanks.drain(..end);
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        let rest = self.stream.take().map(Stream::rest).unwrap_or_default();
        self.write(&rest)?;
        print("")
    }
}

/// The token ids of a text.
fn encode(text: &str, tokenizer: Option<&Tokenizer>, vocab: usize) -> Result<Vec<u32>> {
    let ids: Vec<u32> = if let Some(tokenizer) = tokenizer {
        tokenizer.encode(text)?
    } else {
        let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
        let id = |word: &str| {
            let id = word.parse::<u32>().ok().filter(|id| (*id as usize) < vocab);
            id.with_context(|| {
                format!("`{word}` is none of the {vocab} token ids, 0 to {}", vocab - 1)
            })
        };
        words.map(id).collect::<Result<_>>()?
    };
    ensure!(!ids.is_empty(), "it is empty: give at least one token");
    Ok(ids)
}

fn temperature(text: &str) -> Result<f64, String> {
    number(text, |t| t.is_finite() && t >= 0.0, "a number of at least 0")
}

fn probability(text: &str) -> Result<f64, String> {
    number(text, |p| p > 0.0 && p <= 1.0, "a number above 0 and up to 1")
}

fn number(text: &str, fits: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x| fits(*x)).ok_or_else(|| format!("it must be {what}"))
}

fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

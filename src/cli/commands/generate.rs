//! `chimera generate`: texts from a trained model.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use chimera_core::layers::Layers;
use clap::builder::StringValueParser;
use clap::{Args, ValueHint};
use serde_json::json;

use crate::cli::parts::console::{print, write};
use crate::cli::parts::costs::{may_be_negative, whole};
use crate::cli::parts::model;
use crate::cli::parts::offered::{device_name, offered};
use crate::cli::parts::stop_strings::StopStrings;
use crate::data::tokenizer::{Stream, Tokenizer};
use crate::device::{Compute, Device, Devices, Precision};
use crate::formats::hf::Pretrained;
use crate::run::evaluate::{CausalLm, Sampling, must_foresee};

/// Continues a text with a trained model, or several
#[derive(Args)]
#[command(mut_args(|arg| may_be_negative(arg, &["prompts", "stop"])))]
pub(crate) struct Generate {
    /// Folder of the model: a run, a checkpoint, or a folder of `train --save` or of Hugging Face (config.json,
    /// model.safetensors) [default: the newest run in `runs` with a model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// What is continued: text, or token ids where there is no tokenizer; may be repeated, for texts that are continued side
    /// by side
    #[arg(long = "prompt", value_name = "TEXT", required = true)]
    prompts: Vec<String>,
    /// `bytes`, `gpt2`, a tokenizer.json file, or `ids` for numbers [default: the tokenizer.json beside the
    /// model, or that of the data which a checkpoint was trained on; else by the vocabulary: 256 is bytes, 50257
    /// gpt2, any other ids]
    #[arg(long, value_name = "NAME")]
    #[arg(value_hint = ValueHint::AnyPath, hide_possible_values = true)]
    #[arg(value_parser = offered(StringValueParser::new(), || vec!["bytes", "gpt2", "ids"]))]
    tokenizer: Option<String>,
    /// Number of tokens to add
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = whole::<usize>)]
    tokens: usize,
    /// What logits are divided by; 0 takes the likeliest token each time
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    temperature: f64,
    /// Draws among the K likeliest tokens [default: all]
    #[arg(long, value_name = "K", value_parser = count)]
    top_k: Option<usize>,
    /// Draws among the fewest likeliest tokens that have probability P together
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    top_p: f64,
    /// Ends the text before this string; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    stop: Vec<String>,
    /// Key of the draws
    #[arg(long, value_name = "SEED", default_value_t = 1, value_parser = whole::<u64>)]
    seed: u64,
    /// Stages that the model is cut into, each with its own weights, keys and values; on GPUs each has one of its own.
    /// Also called pipeline-parallel size
    #[arg(long, value_name = "STAGES", default_value_t = 1, value_parser = count)]
    depth: usize,
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
        let encode = |prompt| encode(prompt, tokenizer.as_ref(), vocab).context("--prompt");
        let prompts = self.prompts.iter().map(|prompt| encode(prompt));
        let prompts = prompts.collect::<Result<Vec<_>>>()?;
        let how = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
            window: Some(loaded.sequence),
        };
        // Texts that grow side by side are written one after the other.
        let is_kept = self.json || prompts.len() > 1;
        let writer = || Writer {
            stops: StopStrings::new(self.stop.clone()),
            stream: tokenizer.as_ref().map(Stream::new),
            text: Text { all: is_kept.then(String::new), ..Text::default() },
            is_over: false,
        };
        let layers = loaded.model.config.layers;
        ensure!(
            self.depth <= layers,
            "{} stages need at least as many layers, and the model has {layers}: choose a smaller --depth",
            self.depth
        );
        let devices = vec![self.device; self.depth];
        let devices = Devices::open(&devices, 1, Precision::F32)?;
        let continued = devices.run(Continue {
            read: loaded.model,
            prompts: &prompts,
            count: self.tokens,
            how: &how,
            writers: prompts.iter().map(|_| writer()).collect(),
        })??;
        let mut found = Vec::new();
        for (prompt, (ids, text)) in prompts.iter().zip(continued) {
            let text = text.unwrap_or_default();
            if self.json {
                let text = if tokenizer.is_none() { text.trim_end() } else { &text };
                let added = &ids[prompt.len()..];
                found.push(json!({ "prompt": prompt, "ids": added, "text": text }));
            } else if is_kept {
                print(shown(text.trim_end()))?;
            }
        }
        match &found[..] {
            [] => Ok(()),
            [one] => print(format!("{one:#}")),
            several => print(format!("{:#}", json!(several))),
        }
    }
}

/// Prompts continued by so many tokens.
struct Continue<'g> {
    read: Pretrained,
    prompts: &'g [Vec<u32>],
    count: usize,
    how: &'g Sampling,
    writers: Vec<Writer<'g>>,
}

impl Compute for Continue<'_> {
    /// All ids of each text, and the text if it was not written under way.
    type Output = Result<Vec<(Vec<u32>, Option<String>)>>;

    fn on<K: Layers>(self, devices: &[K]) -> Self::Output {
        let Self { read: Pretrained { config, weights, .. }, prompts, count, how, mut writers } =
            self;
        let model = CausalLm::over(devices, &config, &weights)?;
        drop(weights);
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        for (writer, prompt) in writers.iter_mut().zip(&prompts) {
            let text = writer.decode(prompt);
            writer.text.write(&text)?;
        }
        // Within the pool of threads, so that no layer has to wake it from outside.
        let texts = rayon::scope(|_| {
            model.sample_all(&prompts, count, how, |place, id| writers[place].push(id))
        })?;
        let ends = writers.into_iter().map(Writer::end);
        texts.into_iter().zip(ends).map(|(ids, text)| Ok((ids, text?))).collect()
    }
}

/// Turns the tokens of a text into words, and writes them up to a stop string.
struct Writer<'w> {
    stops: StopStrings,
    /// `None` where ids are written as numbers.
    stream: Option<Stream<'w>>,
    text: Text,
    is_over: bool,
}

impl Writer<'_> {
    fn decode(&mut self, ids: &[u32]) -> String {
        match &mut self.stream {
            Some(stream) => stream.push(ids),
            None => ids.iter().map(|id| format!("{id} ")).collect(),
        }
    }

    /// Writes a token, and says whether the text goes on.
    fn push(&mut self, id: u32) -> Result<bool> {
        let text = self.decode(&[id]);
        let (text, ends) = self.stops.push(&text);
        self.text.write(&text)?;
        self.is_over = ends;
        Ok(!ends)
    }

    fn end(mut self) -> Result<Option<String>> {
        if !self.is_over {
            let rest = self.stream.map(Stream::rest).unwrap_or_default();
            self.text.write(&self.stops.push(&rest).0)?;
            self.text.write(&self.stops.rest())?;
        }
        self.text.end()
    }
}

/// The text, on standard output as far as it is known, or kept.
#[derive(Default)]
struct Text {
    /// What is not written yet: blanks, which are left out at the end.
    blanks: String,
    /// All of it, where it is kept.
    all: Option<String>,
}

impl Text {
    fn write(&mut self, text: &str) -> Result<()> {
        if let Some(all) = &mut self.all {
            all.push_str(text);
            return Ok(());
        }
        self.blanks += &shown(text);
        let end = self.blanks.trim_end().len();
        write(&[&self.blanks[..end]])?; // a line may take long
        self.blanks.drain(..end);
        Ok(())
    }

    fn end(self) -> Result<Option<String>> {
        if self.all.is_none() {
            print("")?;
        }
        Ok(self.all)
    }
}

/// The text without control characters, which a terminal obeys.
fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
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

fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("it must not be empty".into()) } else { Ok(text.into()) }
}

fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

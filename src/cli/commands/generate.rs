//! `chimera generate`: generates text with a trained model.

mod in_pipeline;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use chimera_core::layers::Layers;
use clap::builder::StringValueParser;
use clap::{Args, ValueHint};
use serde_json::json;

use crate::cli::commands::pipeline::Pipeline;
use crate::cli::parts::schedule::costs::{at_least_one, may_be_negative, whole};
use crate::cli::parts::terminal::console::print;
use crate::cli::parts::terminal::offered::{device_name, offered};
use crate::cli::parts::training::model::Loaded;
use crate::cli::parts::training::model_args::ModelArgs;
use crate::cli::parts::training::written::{Continued, TextWriter, TokenForm, shown};
use crate::data::chat::{Chat, ChatTemplate};
use crate::data::tokenizer::Tokenizer;
use crate::device::{Compute, Device, Devices, Precision, start_threads};
use crate::formats::hf::Pretrained;
use crate::run::evaluate::{CausalLm, Sampling, must_foresee};

/// Generates text with a trained model
#[derive(Args)]
#[command(mut_args(|arg| may_be_negative(arg, &["prompts", "stop"])))]
pub(crate) struct Generate {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue, or token ids if there is no tokenizer; may be repeated, for a batch. The tokenizer.json may
    /// put a token before the text, such as begin-of-text
    #[arg(long = "prompt", value_name = "TEXT", required = true)]
    prompts: Vec<String>,
    /// Treat each prompt as a user's message, and apply the model's chat template
    #[arg(long)]
    chat: bool,
    /// Chat template file [default: the one beside the model's tokenizer.json]
    #[arg(long, value_name = "FILE", requires = "chat")]
    chat_template: Option<PathBuf>,
    /// Tokenizer: `bytes`, `gpt2`, a tokenizer.json file, or `ids` for numbers [default: the tokenizer.json beside the
    /// model, or that of a checkpoint's data; otherwise by the vocabulary: 256 is bytes, 50257 gpt2, any other ids]
    #[arg(long, value_name = "NAME")]
    #[arg(value_hint = ValueHint::AnyPath, hide_possible_values = true)]
    #[arg(value_parser = offered(StringValueParser::new(), || vec!["bytes", "gpt2", "ids"]))]
    tokenizer: Option<String>,
    /// Maximum new tokens
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = whole::<usize>)]
    tokens: usize,
    /// Sampling temperature; 0 takes the likeliest token each time
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    temperature: f64,
    /// Sample from the K likeliest tokens [default: all]
    #[arg(long, value_name = "K", value_parser = at_least_one)]
    top_k: Option<usize>,
    /// Sample from the fewest tokens whose probabilities add up to P
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    top_p: f64,
    /// End the text before this string, or before these ids if there is no tokenizer; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    stop: Vec<String>,
    /// Continue after the end-of-text token of the model or of the run's data
    #[arg(long)]
    ignore_end: bool,
    /// Do not put a begin-of-text token before a prompt
    #[arg(long)]
    no_begin_of_text: bool,
    /// Maximum tokens that the model sees; more than its context only with rotary positions [default: the length of the
    /// samples in training, otherwise the model's context]
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    context: Option<usize>,
    /// Random seed
    #[arg(long, value_name = "SEED", default_value_t = 1, value_parser = whole::<u64>)]
    seed: u64,
    #[command(flatten)]
    pipeline: Pipeline,
    /// Device: cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    #[arg(value_parser = device_name(), hide_possible_values = true)]
    device: Device,
    /// Print JSON, with the token ids
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(crate) fn run(self) -> Result<()> {
        let mut loaded = self.model.load()?;
        must_foresee(&loaded.model.config)?;
        let window = self.context.unwrap_or(loaded.sequence);
        loaded.extend(window)?;
        let longest = loaded.model.config.context;
        ensure!(
            window <= longest,
            "a context of {window} tokens is longer than the model's, which has positions for {longest}: choose a smaller \
             --context"
        );
        let tokenizer = loaded.tokenizer(self.tokenizer.as_deref())?;
        let vocab = loaded.model.config.vocab;
        let prompts = self.prompts(&loaded, tokenizer.as_ref())?;
        let ends = if self.ignore_end { Vec::new() } else { loaded.model.ids.ends() };
        let how = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
            window: Some(window),
        };
        // Texts that grow side by side are printed one after another.
        let is_kept = self.json || prompts.len() > 1;
        let stops = match &tokenizer {
            Some(_) => Vec::new(),
            None => {
                let stops = self.stop.iter().map(|stop| encode(stop, None, vocab));
                stops.collect::<Result<Vec<_>>>().context("--stop")?
            }
        };
        let writer = || {
            let form = match &tokenizer {
                Some(tokenizer) => TokenForm::text(tokenizer, &self.stop),
                None => TokenForm::ids(&stops),
            };
            TextWriter::new(form, &ends, is_kept)
        };
        let writers = prompts.iter().map(|_| writer()).collect();
        let (read, count) = (loaded.model, self.tokens);
        let go_on = Continue { read, prompts: &prompts, count, how: &how, writers };
        let continued = if self.pipeline.is_one_worker() {
            Devices::open(&[self.device], 1, Precision::F32)?.run(go_on)??
        } else {
            let Some(continued) = go_on.in_pipeline(&self)? else { return Ok(()) };
            continued
        };
        if self.json {
            print_json(&prompts, &continued, tokenizer.is_some())
        } else if is_kept {
            let texts = continued.iter().map(|one| one.text.as_deref().unwrap_or_default());
            texts.map(str::trim_end).try_for_each(|text| print(shown(text)))
        } else {
            Ok(())
        }
    }
}

impl Generate {
    /// Returns the tokens of the prompts.
    fn prompts(&self, loaded: &Loaded, tokenizer: Option<&Tokenizer>) -> Result<Vec<Prompt>> {
        let beginning = match tokenizer {
            Some(tokenizer) if !self.no_begin_of_text => tokenizer.beginning()?,
            _ => Vec::new(),
        };
        let template = self.template(loaded)?;
        let prompts = self.prompts.iter().map(|prompt| {
            let text = match &template {
                None => prompt.clone(),
                Some(template) => template.question(&Chat::of_user(prompt))?,
            };
            let ids = encode(&text, tokenizer, loaded.model.config.vocab).context("--prompt")?;
            Ok(Prompt::new(ids, &beginning))
        });
        prompts.collect()
    }

    /// Returns the template of the prompts, if they are messages.
    fn template(&self, loaded: &Loaded) -> Result<Option<ChatTemplate>> {
        if !self.chat {
            return Ok(None);
        }
        let file = loaded.tokenizer_file()?;
        ChatTemplate::read(self.chat_template.as_deref(), file.as_deref()).map(Some)
    }
}

/// Prints the new ids and the text of each prompt as JSON.
fn print_json(prompts: &[Prompt], continued: &[Continued], has_tokenizer: bool) -> Result<()> {
    let of =
        |(Prompt { ids: prompt, .. }, Continued { ids, text, reason }): (&Prompt, &Continued)| {
            let text = text.as_deref().unwrap_or_default();
            let text = if has_tokenizer { text } else { text.trim_end() };
            let (added, reason) = (&ids[prompt.len()..], reason.name());
            json!({ "prompt": prompt, "ids": added, "text": text, "finish_reason": reason })
        };
    let found: Vec<_> = prompts.iter().zip(continued).map(of).collect();
    match &found[..] {
        [one] => print(format!("{one:#}")),
        several => print(format!("{:#}", json!(several))),
    }
}

/// A text to continue.
struct Prompt {
    ids: Vec<u32>,
    /// Number of ids that were put before the user's text: these are not printed.
    n_before: usize,
}

impl Prompt {
    /// Puts `beginning` before a text that does not begin with it.
    fn new(ids: Vec<u32>, beginning: &[u32]) -> Prompt {
        if ids.starts_with(beginning) {
            Prompt { ids, n_before: 0 }
        } else {
            Prompt { ids: [beginning, &ids].concat(), n_before: beginning.len() }
        }
    }
}

/// Continues prompts by `count` tokens.
struct Continue<'g> {
    read: Pretrained,
    prompts: &'g [Prompt],
    count: usize,
    how: &'g Sampling,
    writers: Vec<TextWriter<'g>>,
}

fn begin(writers: &mut [TextWriter<'_>], prompts: &[Prompt]) -> Result<()> {
    let mut each = writers.iter_mut().zip(prompts);
    each.try_for_each(|(writer, prompt)| writer.begin(&prompt.ids[prompt.n_before..]))
}

impl Compute for Continue<'_> {
    type Output = Result<Vec<Continued>>;

    fn on<K: Layers>(self, devices: &[K]) -> Self::Output {
        let Self { read: Pretrained { config, weights, .. }, prompts, count, how, mut writers } =
            self;
        let model = CausalLm::over(devices, &config, &weights)?;
        drop(weights);
        begin(&mut writers, prompts)?;
        let prompts: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.ids.as_slice()).collect();
        start_threads()?;
        // Runs within the thread pool, so that no layer has to wake it from outside.
        let texts = rayon::scope(|_| {
            model.sample_all(&prompts, count, how, |place, id| writers[place].push(id))
        })?;
        texts.into_iter().zip(writers).map(|(ids, writer)| writer.end(ids)).collect()
    }
}

/// Returns the token ids of a text.
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

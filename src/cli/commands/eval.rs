//! `chimera eval`: evaluates a trained model on a text.

use std::fs::read_to_string;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use chimera_core::layers::Layers;
use chimera_core::model::Objective;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::cli::commands::pipeline::{Pipeline, forwards};
use crate::cli::parts::schedule::costs::{may_be_negative, whole};
use crate::cli::parts::terminal::console::{print, warn};
use crate::cli::parts::terminal::offered::device_name;
use crate::cli::parts::training::model::{Loaded, warn_of_bytes};
use crate::cli::parts::training::model_args::ModelArgs;
use crate::data::text_kind::doubt;
use crate::data::tokenizer::Tokenizer;
use crate::data::{self, DataError, Pairs, Tokens, tokenizer_of};
use crate::device::{Compute, Device, Devices, Precision, start_threads};
use crate::formats::hf::Pretrained;
use crate::run::evaluate::{Bert, Scoring, Staged, Windows};

/// Measures loss and perplexity of a trained model on whole files
#[derive(Args)]
#[command(mut_args(|arg| may_be_negative(arg, &[])))]
pub(crate) struct Eval {
    #[command(flatten)]
    model: ModelArgs,
    /// Text files for the model's tokenizer, or token ids: `.bin` of u16, `.u32.bin` of u32
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    data: Vec<PathBuf>,
    /// Tokens per window, or per sample of a BERT; more than the model's context only with rotary positions [default: the
    /// length of the samples in training, otherwise the model's context]
    #[arg(long, value_name = "TOKENS", value_parser = whole::<usize>)]
    context: Option<usize>,
    /// Tokens from one window to the next; fewer give each token more context, and take longer
    /// [default: a whole window]
    #[arg(long, value_name = "TOKENS", value_parser = whole::<usize>)]
    stride: Option<usize>,
    /// Restrict attention to tokens of the same document (the data must mark document ends)
    #[arg(long)]
    document_mask: bool,
    /// Random seed of the masks of a BERT
    #[arg(long, value_name = "SEED", default_value_t = 1, value_parser = whole::<u64>)]
    seed: u64,
    #[command(flatten)]
    pipeline: Pipeline,
    /// Device: cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    #[arg(value_parser = device_name(), hide_possible_values = true)]
    device: Device,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Eval {
    pub(crate) fn run(self) -> Result<()> {
        let mut loaded = self.model.load()?;
        if self.document_mask {
            loaded.model.config.end_of_text = Some(data::end_of_text(&self.data)?);
            loaded.model.config.validate()?;
        }
        let of_data = match tokenizer_of(&self.data) {
            // The texts of the ids are then unknown.
            Err(DataError::Tokenizer(_)) if !cfg!(feature = "tokenizers") => None,
            known => known?,
        };
        let own = loaded.own_tokenizer()?;
        let text = match of_data {
            Some(Tokenizer::Bytes) => self.encoded(&loaded)?,
            _ => None,
        };
        if let (Some(own), Some(of_data), None) = (&own, &of_data, &text) {
            own.check_data(of_data)?;
        }
        if own.is_none() && text.is_none() {
            warn_of_bytes(of_data.as_ref(), loaded.model.config.vocab);
        }
        start_threads()?;
        let context = self.context.unwrap_or(loaded.sequence);
        loaded.extend(context)?;
        let (place, read) = (loaded.place, loaded.model);
        let evaluation = Evaluation { eval: &self, place, context, own, text, read };
        match evaluation.read.config.objective() {
            Objective::NextToken => self.foresee(evaluation),
            Objective::MaskedTokens => {
                Devices::open(&[self.device], 1, Precision::F32)?.run(evaluation)?
            }
        }
    }

    /// Returns the text as tokens of the model, if it predicts the next token and its tokens are not
    /// bytes.
    fn encoded(&self, loaded: &Loaded) -> Result<Option<Tokens>> {
        self.data.iter().filter_map(|path| doubt(path)).for_each(|doubt| warn(&doubt));
        if loaded.model.config.objective() != Objective::NextToken {
            return Ok(None);
        }
        let tokenizer = loaded.tokenizer(None)?;
        let Some(tokenizer) = tokenizer.filter(|own| !matches!(own, Tokenizer::Bytes)) else {
            return Ok(None);
        };
        let mut ids = Vec::new();
        for path in &self.data {
            let text =
                read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            ids.extend(tokenizer.encode(&text)?);
        }
        Ok(Some(Tokens::of_ids(&ids)))
    }

    /// Predicts every token from those before it.
    fn foresee(&self, evaluation: Evaluation<'_>) -> Result<()> {
        let Evaluation { place, context, text, read, .. } = evaluation;
        let tokens = match text {
            Some(tokens) => tokens,
            None => data::read(&self.data, read.config.vocab)?,
        };
        let stride = self.stride.unwrap_or(context);
        let windows = Windows::new(&tokens, context, stride, read.config.end_of_text)?;
        let bar = bar(windows.n_windows(), "windows");
        let program = self.pipeline.program(windows.n_windows() as usize)?;
        let model = Staged::new(&read.config, read.weights, &program, self.pipeline.width())?;
        let observe = |done| bar.set_position(done);
        let scoring = Scoring::new(model, windows, &observe)?;
        let began = Instant::now();
        let score = forwards(
            (scoring.model(), scoring.longest_tensor()),
            self.device,
            |devices, threads| scoring.in_threads(devices, threads),
            |device, comm, threads| scoring.on_rank(device, comm, threads),
        );
        bar.finish_and_clear();
        let Some(score) = score? else { return Ok(()) };
        let seconds = began.elapsed().as_secs_f64();
        ensure!(score.loss.is_finite(), "the loss is not finite: the model overflows on this text");
        if self.json {
            let report = json!({
                "model": place, "loss": score.loss, "perplexity": score.perplexity(), "tokens": score.n_targets,
                "context": context, "stride": stride, "workers": scoring.model().n_ranks(), "seconds": seconds,
            });
            return print(format!("{report:#}"));
        }
        print(format!(
            "loss {:.4} nats per token, perplexity {:.3}, over {} tokens in windows of {context}, stride \
             {stride} ({:.0} tokens/s)",
            score.loss,
            score.perplexity(),
            score.n_targets,
            score.n_targets as f64 / seconds,
        ))
    }

    /// Predicts masked tokens from those around them.
    fn guess<K: Layers>(&self, kernels: K, evaluation: Evaluation<'_>) -> Result<()> {
        let Evaluation { place, context, own, read, .. } = evaluation;
        ensure!(self.stride.is_none(), "a BERT's samples lie side by side: leave --stride out");
        ensure!(
            self.pipeline.is_one_worker(),
            "a BERT is evaluated by one worker: leave --depth, --width and a schedule's file out"
        );
        read.config.check_sequence(context)?;
        let pairs = Pairs::open(&self.data, &read.config, context)?;
        if let Some(own) = &own {
            pairs.check_model(own)?;
        }
        let model = Bert::new(kernels, &read.config, &read.weights)?;
        drop(read.weights);

        let bar = bar(pairs.n_samples(), "pairs");
        let began = Instant::now();
        let score = model.score(&pairs, self.seed, |done| bar.set_position(done));
        bar.finish_and_clear();
        let (score, seconds) = (score?, began.elapsed().as_secs_f64());
        let loss = score.masked_loss + score.pair_loss;
        ensure!(loss.is_finite(), "the loss is not finite: the model overflows on this text");
        let masked = score.n_samples * score.n_masked as u64;
        if self.json {
            let report = json!({
                "model": place, "loss": loss, "masked_loss": score.masked_loss, "pair_loss": score.pair_loss,
                "pairs_right": score.pairs_right, "masked": masked, "pairs": score.n_samples,
                "context": context, "seconds": seconds,
            });
            return print(format!("{report:#}"));
        }
        print(format!(
            "loss {:.4} nats per masked token, over {masked}; {:.4} per pair, over {}, {:.1} % of \
            them classified correctly",
            score.masked_loss,
            score.pair_loss,
            score.n_samples,
            100.0 * score.pairs_right,
        ))
    }
}

/// A model and its text. On one device a BERT is evaluated.
struct Evaluation<'e> {
    eval: &'e Eval,
    place: PathBuf,
    /// Tokens per window or sample.
    context: usize,
    /// The model's tokenizer, if it came with one.
    own: Option<Tokenizer>,
    /// The text in the tokens of the model, unless the data are tokens already.
    text: Option<Tokens>,
    read: Pretrained,
}

impl Compute for Evaluation<'_> {
    type Output = Result<()>;

    fn on<K: Layers>(self, devices: &[K]) -> Self::Output {
        self.eval.guess(devices[0].clone(), self)
    }
}

fn bar(len: u64, what: &str) -> ProgressBar {
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new(len) } else { ProgressBar::hidden() };
    let template = format!("{{bar:30}} {{pos}}/{{len}} {what}, eta {{eta}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

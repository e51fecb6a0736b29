//! `chimera eval`: how well a trained model foresees a text.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use chimera::candle::Candle;
use chimera::data;
use chimera::evaluate::Model;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{model, print};

/// Measures loss and perplexity of a trained model on whole files
#[derive(Args)]
pub(crate) struct Eval {
    /// Folder of the model: of `train --save`, of Hugging Face (config.json, model.safetensors), of a run with
    /// checkpoints, or a checkpoint
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Text files (bytes are tokens), or `.bin` files of u16 token ids, `.u32.bin` of u32 ids
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    data: Vec<PathBuf>,
    /// Tokens of a window [default: the model's context]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Tokens from one window to the next; fewer give each token more before it, and take longer
    /// [default: a whole window]
    #[arg(long, value_name = "TOKENS")]
    stride: Option<usize>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Eval {
    pub(crate) fn run(self) -> Result<()> {
        let gpt2 = model::load(&self.model)?;
        let tokens = data::read(&self.data, gpt2.config.vocab)?;
        let context = self.context.unwrap_or(gpt2.config.context);
        let stride = self.stride.unwrap_or(context);
        let model = Model::new(Candle::cpu(), &gpt2.config, &gpt2.weights)?;
        drop(gpt2.weights);

        let bar = match std::io::stderr().is_terminal() {
            true => ProgressBar::new(tokens.len() as u64),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} tokens, eta {eta}") {
            bar.set_style(style);
        }
        let began = Instant::now();
        let score = model.score(&tokens, context, stride, |done| bar.set_position(done as u64));
        bar.finish_and_clear();
        let (score, seconds) = (score?, began.elapsed().as_secs_f64());
        ensure!(score.loss.is_finite(), "the loss is not finite: the model overflows on this text");
        if self.json {
            let report = json!({
                "loss": score.loss, "perplexity": score.perplexity(), "tokens": score.n_targets,
                "context": context, "stride": stride, "seconds": seconds,
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
}

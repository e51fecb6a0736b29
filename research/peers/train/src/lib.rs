//! Parts that the peers share: sizes of the model, samples, the loop over steps, and its time.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;

/// Steps at the start that are not measured.
const WARM_UP: usize = 2;

/// One of the two models.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Kind {
    /// Layer norms, a position table, biases.
    Gpt2,
    /// RMS norms, rotary positions, a gated MLP, shared keys and values, no biases.
    Llama,
}

/// Number format of weights, activations and moments.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits, with as many exponent bits as f32.
    Bf16,
}

/// The model and the batch, with the option names of `chimera train`.
#[derive(Parser)]
pub struct Args {
    #[arg(long)]
    pub model: Kind,
    #[arg(long)]
    pub precision: Precision,
    #[arg(long)]
    pub layers: usize,
    #[arg(long)]
    pub hidden: usize,
    #[arg(long)]
    pub heads: usize,
    /// Key and value heads of a Llama.
    #[arg(long, default_value_t = 0)]
    pub kv_heads: usize,
    /// Features within the MLP of a Llama.
    #[arg(long, default_value_t = 0)]
    pub mlp_hidden: usize,
    #[arg(long)]
    pub context: usize,
    #[arg(long)]
    pub vocab: usize,
    #[arg(long)]
    pub micro_batches: usize,
    #[arg(long)]
    pub micro_batch_size: usize,
    #[arg(long)]
    pub steps: usize,
    #[arg(long)]
    pub lr: f64,
    #[arg(long)]
    data: PathBuf,
}

/// A micro-batch: the tokens of one sample after another, and the token after each.
pub struct Samples {
    pub input: Vec<u32>,
    pub target: Vec<u32>,
}

/// Trains for the requested steps, and prints as JSON tokens per second of the median step, first
/// and last loss, and the number of parameters. `step` trains on the micro-batches of a step, and
/// returns their mean loss.
///
/// # Errors
///
/// If the data cannot be read, is too short, or a step fails.
pub fn run(
    args: &Args,
    version: &str,
    n_parameters: usize,
    mut step: impl FnMut(&[Samples]) -> Result<f64, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read(&args.data)?;
    if text.len() <= args.context + 1 {
        return Err("the data is shorter than a sample".into());
    }
    let mut rng = StdRng::seed_from_u64(0);
    let (mut seconds, mut losses) = (Vec::new(), Vec::new());
    for _ in 0..args.steps {
        let batch: Vec<_> =
            (0..args.micro_batches).map(|_| samples(args, &text, &mut rng)).collect();
        let start = Instant::now();
        losses.push(step(&batch)?);
        seconds.push(start.elapsed().as_secs_f64());
    }
    let mut measured = seconds.split_off(WARM_UP.min(args.steps - 1));
    measured.sort_by(f64::total_cmp);
    let n_tokens = args.micro_batches * args.micro_batch_size * args.context;
    println!(
        "{}",
        json!({
            "tokens_per_s": n_tokens as f64 / measured[measured.len() / 2],
            "first_loss": losses.first(),
            "last_loss": losses.last(),
            "parameters": n_parameters,
            "version": version,
        })
    );
    Ok(())
}

fn samples(args: &Args, text: &[u8], rng: &mut StdRng) -> Samples {
    let mut samples = Samples { input: Vec::new(), target: Vec::new() };
    for _ in 0..args.micro_batch_size {
        let at = rng.random_range(0..text.len() - args.context - 1);
        let ids = |from: usize| {
            text[from..from + args.context].iter().map(|b| u32::from(*b) % args.vocab as u32)
        };
        samples.input.extend(ids(at));
        samples.target.extend(ids(at + 1));
    }
    samples
}

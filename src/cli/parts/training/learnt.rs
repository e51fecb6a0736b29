//! Evaluation of a trained model: its validation loss, and a text that it writes.

use anyhow::Result;
use chimera_backend_cpu::Candle;
use chimera_core::layers::Layers;
use chimera_core::model::Objective;

use crate::cli::parts::terminal::progress::Say;
use crate::data::tokenizer::Tokenizer;
use crate::device::{Compute, OpenDevice, start_threads};
use crate::run::evaluate::{Bert, CausalLm, Sampling};
use crate::run::{Run, Trained};

/// Approximate length of the text that a trained model writes at the end, in characters.
const N_SAMPLE: usize = 240;
/// Temperature of that text: at 0.8 a small model misspells every seventh word.
const TEMPERATURE: f64 = 0.5;
/// Approximate length of a token that is more than a byte, in characters.
const TOKEN_CHARS: usize = 4;
/// The most weights that a processor reads for this text, which is weights times tokens: some
/// seconds.
const MOST_WEIGHTS: usize = 10_000_000_000;

/// The results of a trained model.
pub(crate) struct Learnt {
    /// Validation loss in nats: per token, or per masked token and per pair.
    pub(crate) loss: f64,
    /// Perplexity of a model that generates text.
    pub(crate) perplexity: Option<f64>,
    /// A text that begins after a line break, from a model that generates text.
    pub(crate) sample: Option<String>,
}

/// Evaluates the model on the devices that trained it, each with its part. If that fails, uses the
/// processor.
pub(crate) fn learnt(run: &Run, trained: &Trained, say: &Say) -> Result<Learnt> {
    start_threads()?;
    let trial = Trial { run, trained, is_on_host: false };
    let devices = run.devices();
    if !devices.one().is_some_and(OpenDevice::is_host) {
        match devices.each_once().run(trial).and_then(|learnt| learnt) {
            Ok(learnt) => return Ok(learnt),
            Err(reason) => say.line(&format!("the model is tried on the processor: {reason:#}")),
        }
    }
    Trial { is_on_host: true, ..trial }.on(&[Candle::cpu()])
}

#[derive(Clone, Copy)]
struct Trial<'t> {
    run: &'t Run,
    trained: &'t Trained,
    is_on_host: bool,
}

impl Compute for Trial<'_> {
    type Output = Result<Learnt>;

    fn on<K: Layers>(self, devices: &[K]) -> Result<Learnt> {
        let (run, weights) = (self.run, &self.trained.weights);
        let (model, validation) = (run.model(), run.validation()?);
        match model.objective() {
            Objective::NextToken => {
                let devices = &devices[..devices.len().min(model.layers)];
                let model = CausalLm::over(devices, model, weights)?;
                let loss = model.loss(&validation)?;
                // A model whose loss overflows cannot continue a text.
                let tokenizer = run.corpus().tokenizer().filter(|_| loss.is_finite());
                let sample =
                    tokenizer.map(|tokenizer| self.sample(&model, tokenizer)).transpose()?;
                Ok(Learnt { loss, perplexity: Some(loss.exp()), sample })
            }
            Objective::MaskedTokens => {
                let model = Bert::new(devices[0].clone(), model, weights)?;
                Ok(Learnt { loss: model.loss(&validation)?, perplexity: None, sample: None })
            }
        }
    }
}

impl Trial<'_> {
    fn sample<K: Layers>(&self, model: &CausalLm<K>, tokenizer: &Tokenizer) -> Result<String> {
        let mut count = match tokenizer {
            Tokenizer::Bytes => N_SAMPLE,
            _ => N_SAMPLE / TOKEN_CHARS,
        };
        if self.is_on_host {
            let n_weights: usize =
                self.trained.weights.iter().map(|(_, values)| values.len()).sum();
            count = count.min(MOST_WEIGHTS / n_weights.max(1)).max(1);
        }
        let mut prompt = tokenizer.encode("\n")?;
        if prompt.is_empty() {
            prompt.push(0); // some tokenizers drop a line break
        }
        let seed = self.run.config().training.seed;
        let sequence = self.run.config().model.sequence;
        let how = Sampling {
            temperature: TEMPERATURE,
            seed,
            window: Some(sequence),
            ..Sampling::default()
        };
        Ok(tokenizer.decode(&model.sample(&prompt, count, &how, |_| Ok(true))?)?)
    }
}

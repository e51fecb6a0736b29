//! Predictions of a model from a folder: `logits DIR ID...` prints the logits after each of some
//! tokens as JSON, one row of the vocabulary after another. For a BERT, the second half of the
//! tokens is the second segment. It prints the logits at the position of each token, and last the
//! logarithm of the odds that the second segment does not follow the first.

use std::path::PathBuf;

use anyhow::{Context, Result};
use chimera::candle::Candle;
use chimera::core::model::Objective;
use chimera::formats::hf;
use chimera::run::evaluate::{Bert, CausalLm};

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let dir = PathBuf::from(words.next().context("usage: logits DIR ID...")?);
    let ids = words.map(|word| word.parse()).collect::<Result<Vec<u32>, _>>()?;
    let read = hf::read(&dir)?;
    let logits = match read.config.objective() {
        Objective::NextToken => {
            let model = CausalLm::new(Candle::cpu(), &read.config, &read.weights)?;
            model.logits(&ids, ids.len())?
        }
        Objective::MaskedTokens => {
            let model = Bert::new(Candle::cpu(), &read.config, &read.weights)?;
            let second = ids.len() / 2;
            let mut logits = model.logits(&ids, second)?;
            logits.push(model.strangeness(&ids, second)? as f32);
            logits
        }
    };
    println!("{}", serde_json::to_string(&logits)?);
    Ok(())
}

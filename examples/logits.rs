//! What a GPT-2 from a folder expects after each of some tokens: `logits DIR ID...` prints the logits, one
//! row of the vocabulary after another, as JSON.

use std::path::PathBuf;

use anyhow::{Context, Result};
use chimera::candle::Candle;
use chimera::evaluate::Model;
use chimera::hf;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let dir = PathBuf::from(words.next().context("usage: logits DIR ID...")?);
    let ids = words.map(|word| word.parse()).collect::<Result<Vec<u32>, _>>()?;
    let gpt2 = hf::read(&dir)?;
    let model = Model::new(Candle::cpu(), &gpt2.config, &gpt2.weights)?;
    let logits = model.logits(&ids, ids.len())?;
    println!("{}", serde_json::to_string(&logits)?);
    Ok(())
}

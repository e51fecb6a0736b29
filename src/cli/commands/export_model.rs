//! `chimera export`: a trained model for other programs.

use std::path::PathBuf;

use crate::formats::save::prepare;
use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cli::parts::console::print;
use crate::cli::parts::model;

/// Writes a trained model for other programs
#[derive(Args)]
pub(crate) struct Export {
    /// Folder of the model: of `train --save`, of Hugging Face, of a run with checkpoints, or a checkpoint
    model: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value = "hf")]
    format: Format,
    /// Folder to write into, which holds no model yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// What a model can be written as.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A folder as Hugging Face's transformers saves it: config.json, and the weights as f32 in one
    /// model.safetensors
    Hf,
}

impl Export {
    pub(crate) fn run(self) -> Result<()> {
        let Format::Hf = self.format;
        let loaded = model::load(&self.model)?;
        prepare(&self.out, false)?;
        let path = loaded.save(&self.out)?;
        print(format!("wrote {}: {} parameters", path.display(), loaded.model.config.n_params()))
    }
}

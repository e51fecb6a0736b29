//! `chimera export`: a trained model for other programs.

use std::fs::remove_dir;
use std::path::PathBuf;

use anyhow::Result;
use clap::builder::Resettable;
use clap::{Args, ValueEnum};

use crate::cli::parts::terminal::console::print;
use crate::cli::parts::terminal::output::written_path;
use crate::cli::parts::training::model_args::ModelArgs;
use crate::formats::save::prepare;

/// Writes a trained model for other programs
#[derive(Args)]
#[command(mut_arg("model", |model| model.long(Resettable::Reset)))] // by its place
pub(crate) struct Export {
    #[command(flatten)]
    model: ModelArgs,
    /// Format of the model
    #[arg(long, value_enum, default_value = "hf")]
    format: Format,
    /// Folder to write into; it must not hold a model
    #[arg(short, long, value_name = "DIR", value_parser = written_path())]
    out: PathBuf,
}

/// The format of a model.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A folder as Hugging Face's transformers saves it: config.json, the weights as f32 in one
    /// model.safetensors, the tokenizer, generation_config.json and a model card
    Hf,
}

impl Export {
    pub(crate) fn run(self) -> Result<()> {
        let Format::Hf = self.format;
        let loaded = self.model.load()?;
        let was_there = self.out.exists();
        prepare(&self.out, false)?;
        let path = loaded.save(&self.out).inspect_err(|_| {
            if !was_there {
                let _ = remove_dir(&self.out); // fails if the folder is not empty
            }
        })?;
        loaded.save_for_others(&self.out)?;
        print(format!("wrote {}: {} parameters", path.display(), loaded.model.config.n_params()))
    }
}

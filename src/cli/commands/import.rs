//! `chimera schedule import`: proves a timetable from elsewhere, and on request converts it or
//! trains with it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::cli::commands::export::{Format, To};
use crate::cli::commands::train::Train;
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::proof::{proof, proven};
use crate::cli::parts::schedule::shape::PassArgs;
use crate::cli::parts::terminal::console::print;

/// Proves a timetable from a file, to write it with --format or to train with it by --run
#[derive(Args)]
pub(crate) struct Import {
    /// The file: PyTorch's CSV (`compute_only`) if it ends in `.csv`, else JSON; `-` is JSON on standard
    /// input
    file: PathBuf,
    /// What to write it as, once it is proven
    #[arg(long)]
    format: Option<Format>,
    #[command(flatten)]
    to: To,
    #[command(flatten)]
    passes: PassArgs,
    #[command(flatten)]
    costs: CostArgs,
    /// Trains with it; options of `chimera train` follow, and none stand before
    #[arg(long, value_name = "OPTION", num_args = 0.., allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["format", "out", "pipe", "PassArgs", "times", "MemoryArgs"])]
    run: Option<Vec<OsString>>,
}

impl Import {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(options) = self.run {
            return Train::with_schedule(&self.file, options)?.run(); // proves it
        }
        let (plan, program) = proven(&self.file, &self.passes, &self.costs)?;
        match self.format {
            Some(format) => self.to.write((&plan, &program), format, &self.costs),
            None => print(proof(&program, &plan.simulate(&program), &self.costs)),
        }
    }
}

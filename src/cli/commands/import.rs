//! `chimera schedule import`: proves a timetable from elsewhere, and on request converts it or
//! trains with it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use chimera_core::render::report::proof;
use clap::Args;

use crate::cli::commands::export::{Format, To};
use crate::cli::commands::train::Train;
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::proof::proven;
use crate::cli::parts::schedule::shape::PassArgs;
use crate::cli::parts::terminal::console::print;

/// Proves a timetable from a file, and converts it or trains with it
#[derive(Args)]
pub(crate) struct Import {
    /// Timetable: PyTorch's CSV (`compute_only`) if the name ends in `.csv`, otherwise JSON; `-` reads JSON from standard
    /// input
    file: PathBuf,
    /// Format to write the timetable in, after the proof
    #[arg(long)]
    format: Option<Format>,
    #[command(flatten)]
    to: To,
    #[command(flatten)]
    passes: PassArgs,
    #[command(flatten)]
    costs: CostArgs,
    /// Train with the timetable; only options of `chimera train` follow
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
        match self.to.format(self.format)? {
            Some(format) => {
                let timeline = || Ok(plan.simulate(&program));
                let unit = (self.costs.unit(), &timeline as &dyn Fn() -> Result<_>);
                self.to.write((&plan.timetable, &program), format, unit)
            }
            None => print(proof(&program, &plan.simulate(&program), self.costs.unit())),
        }
    }
}

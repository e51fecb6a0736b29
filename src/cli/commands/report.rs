//! `chimera report`: a run as one page of HTML.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueHint};

use crate::cli::parts::console::print;
use crate::cli::parts::report;

/// Writes a page about a run that opens in any browser, without a network: loss, planned and measured timeline, memory,
/// errors of the prediction, advice, settings
#[derive(Args)]
pub(crate) struct Report {
    /// Directory of the run, active or finished
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    run: PathBuf,
    /// File for the page [default: report.html in the directory of the run]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

impl Report {
    pub(crate) fn run(self) -> Result<()> {
        let page = report::write(&self.run, self.out)?;
        print(format!("report: {}", page.display()))
    }
}

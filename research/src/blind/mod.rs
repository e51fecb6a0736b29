//! Measurements that others published, predicted from data sheets and at most one row of each
//! table.

mod megatron;
mod page;
mod primus;
mod table;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::megatron::Megatron;
use self::primus::Primus;
use xtask::command::root;

/// Options for the page.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only checks that docs/blind.md is up to date
    #[arg(long, conflicts_with = "rows")]
    check: bool,
    /// Predicts the rows of another table of Megatron's runs, with the columns of
    /// research/blind/megatron_h100.csv, and prints them; nothing is written
    #[arg(long, value_name = "CSV")]
    rows: Option<PathBuf>,
    /// Folder with a CASE/model_config.yaml for each of these rows [default: the options in
    /// research/blind/megatron_options.csv]
    #[arg(long, value_name = "FOLDER", requires = "rows")]
    configs: Option<PathBuf>,
}

/// Writes docs/blind.md, or only checks it; or predicts other rows.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(rows) = &args.rows {
        let text = fs::read_to_string(rows).with_context(|| rows.display().to_string())?;
        print!("{}", page::megatron(&Megatron::of(&text, args.configs.as_deref())?));
        return Ok(());
    }
    let page = page::page(&Megatron::published()?, &Primus::published()?);
    let path = root().join("docs/blind.md");
    if fs::read_to_string(&path).is_ok_and(|present| present == page) {
        return Ok(());
    }
    if args.check {
        bail!("docs/blind.md is not up to date; write it: cargo xtask blind")
    }
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))
}

//! The evaluation of Chimera's paper (Li & Hoefler, SC 2021), simulated with constants that are
//! fitted to some of its bars.

mod closed_forms;
mod fit;
mod job;
mod page;
mod planner;
mod products;
mod readings;
mod study;
mod tuning;

use std::fs;

use anyhow::{Context, Result, bail};

use self::readings::Readings;
use self::study::Study;
use xtask::command::root;

/// Options for the page.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only checks that docs/paper.md is up to date, except for the planner's choices
    #[arg(long, conflicts_with = "plan")]
    check: bool,
    /// Lets the planner choose again, which builds the command and takes minutes; otherwise its
    /// earlier choices are kept
    #[arg(long)]
    plan: bool,
    /// Prints each bar as published and as predicted instead of writing the page
    #[arg(long, conflicts_with_all = ["plan", "check"])]
    bars: bool,
}

/// Writes docs/paper.md, or only checks it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let readings = Readings::read()?;
    let study = Study::of(&readings)?;
    if args.bars {
        print!("{}", page::bars(&study));
        return Ok(());
    }
    let path = root().join("docs/paper.md");
    let present = fs::read_to_string(&path).unwrap_or_default();
    let chosen = if args.plan {
        planner::section(&study)?
    } else {
        planner::section_of(&present).to_string()
    };
    let page = page::page(&readings, &study)? + &chosen;
    if page == present {
        return Ok(());
    }
    if args.check {
        bail!("docs/paper.md is not up to date; write it: cargo xtask paper")
    }
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))
}

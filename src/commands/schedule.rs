//! `chimera schedule`: the schedules there are, what they look like, and whether a file is one.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera::core::exchange::{self, json::MAX_BYTES};
use chimera::core::lower::{Lowering, lower};
use chimera::core::render::{svg, text};
use chimera::core::schedule::{SCHEDULES, find};
use chimera::core::timetable::Timetable;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::simulate::{summary, timeline};
use super::{CostArgs, ShapeArgs, gallery};

/// Lists, draws and checks schedules
#[derive(Args)]
pub(crate) struct Schedule {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(List),
    Show(Show),
    Check(Check),
    Gallery(gallery::Gallery),
}

/// Lists all schedules, the name first on each line
#[derive(Args)]
struct List {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Draws a schedule
#[derive(Args)]
struct Show {
    /// Name of the schedule
    name: String,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    /// What to print; json is the timetable that `check` reads
    #[arg(long, default_value = "text")]
    format: Format,
    /// The same as `--format json`
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Svg,
    Json,
}

/// Proves a timetable from a JSON file, or says what is wrong with it (exit code 3)
#[derive(Args)]
struct Check {
    /// The file; `-` is standard input
    file: PathBuf,
    #[command(flatten)]
    costs: CostArgs,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Schedule {
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Show(show) => show.run(),
            Command::Check(check) => check.run(),
            Command::Gallery(gallery) => gallery.run(),
        }
    }
}

impl List {
    fn run(self) -> Result<()> {
        if self.json {
            let all: Vec<_> = SCHEDULES
                .iter()
                .map(|s| {
                    let (source, aliases) = (s.source(), s.aliases());
                    json!({"name": s.name(), "aliases": aliases, "about": s.about(),
                           "paper": source.paper, "place": source.place})
                })
                .collect();
            println!("{:#}", json!(all));
            return Ok(());
        }
        for s in SCHEDULES {
            let aliases: String = s.aliases().iter().map(|a| format!(" (also {a})")).collect();
            println!(
                "{:<8}  {}{aliases} [{}]",
                s.name(),
                s.about(),
                s.source().paper
            );
        }
        Ok(())
    }
}

impl Show {
    fn run(self) -> Result<()> {
        let timetable = find(&self.name)?.timetable(&self.shape.shape())?;
        if self.json || self.format == Format::Json {
            print!("{}", exchange::to_json(&timetable));
            return Ok(());
        }
        let program = lower(&timetable, &Lowering::default())?;
        let timeline = timeline(&program, self.costs);
        let summary = summary(&program, &timeline);
        match self.format {
            Format::Svg => print!("{}", svg::timeline(&timeline, &title(&timetable))),
            Format::Text | Format::Json => {
                println!("{}", text::timeline(&timeline).trim_end());
                println!("{summary}");
            }
        }
        Ok(())
    }
}

impl Check {
    fn run(self) -> Result<()> {
        let timetable = read(&self.file)?;
        let program = lower(&timetable, &Lowering::default())
            .with_context(|| self.file.display().to_string())?;
        let timeline = timeline(&program, self.costs);
        if self.json {
            let proof = json!({
                "schedule": timetable.schedule, "proven": true, "depth": timetable.rows.len(),
                "stages": program.placement().n_stages(), "micro_batches": timetable.n_micro_batches,
                "messages": program.n_messages(), "channel_bound": program.channel_bound(),
                "peak_micro_batches": program.peaks(), "makespan": timeline.makespan(),
                "bubble_ratio": timeline.bubble_ratio(),
            });
            println!("{proof:#}");
        } else {
            println!(
                "proven safe: every pass once, no deadlock with {} message(s) per channel, reductions in one order",
                program.channel_bound()
            );
            println!("{}", summary(&program, &timeline));
        }
        Ok(())
    }
}

/// A title such as `chimera, D = 4, N = 8`.
pub(super) fn title(timetable: &Timetable) -> String {
    let (d, n) = (timetable.rows.len(), timetable.n_micro_batches);
    format!("{}, D = {d}, N = {n}", timetable.schedule)
}

/// Reads a timetable; never more of a file than a timetable may have.
fn read(file: &Path) -> Result<Timetable> {
    let place = || format!("cannot read schedule {}", file.display());
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin()
            .take(limit)
            .read_to_end(&mut bytes)
            .with_context(place)?;
    } else {
        let opened = std::fs::File::open(file).with_context(place)?;
        opened
            .take(limit)
            .read_to_end(&mut bytes)
            .with_context(place)?;
    }
    exchange::from_json(&bytes).with_context(place)
}

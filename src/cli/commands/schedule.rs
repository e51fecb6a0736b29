//! `chimera schedule`: lists, draws and explores schedules, and verifies files.

mod combine;
mod explore;

use std::path::PathBuf;

use anyhow::{Context, Result};
use chimera_core::analyze::prove_in_one_order;
use chimera_core::interchange::{self};
use chimera_core::render::report::{proof, summary, title};
use chimera_core::render::screen::Screen;
use chimera_core::render::{html, svg, text};
use chimera_core::schedule::{self, SCHEDULES};
use chimera_core::search::{ABOUT, AUTO};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::commands::export::To;
use crate::cli::commands::{compare, export, gallery, import};
use crate::cli::parts::out::{FileFormat, OutArg};
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::drawing::{Format, screen};
use crate::cli::parts::schedule::own_work::WorkArgs;
use crate::cli::parts::schedule::proof::proven;
use crate::cli::parts::schedule::scheduled::{LostArgs, Scheduled};
use crate::cli::parts::schedule::shape::{PassArgs, ScheduleArg, ShapeArgs, required};
use crate::cli::parts::terminal::console::print;

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
    Compare(compare::Compare),
    Export(Box<export::Export>),
    Import(import::Import),
    Gallery(gallery::Gallery),
    Combine(combine::Combine),
    Explore(explore::Explore),
}

/// Lists all schedules, the name first on each line
#[derive(Args)]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Draws a schedule
#[derive(Args)]
#[command(mut_arg("name", required))]
struct Show {
    #[command(flatten)]
    schedule: ScheduleArg,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    lost: LostArgs,
    #[command(flatten)]
    drawing: Drawing,
}

/// Options of a drawing, and the work that fills idle time.
#[derive(Args)]
struct Drawing {
    #[command(flatten)]
    work: WorkArgs,
    /// Format to print; json is the timetable that `check` reads [default: text, or the ending of --out]
    #[arg(long)]
    format: Option<Format>,
    #[command(flatten)]
    out: OutArg,
    /// Print JSON, as `--format json` does
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Proves a timetable from a file, or shows the error; exit code 3
#[derive(Args)]
struct Check {
    /// Timetable: PyTorch's CSV (`compute_only`) if the name ends in `.csv`, otherwise JSON; `-` reads JSON from standard
    /// input
    file: PathBuf,
    #[command(flatten)]
    passes: PassArgs,
    #[command(flatten)]
    costs: CostArgs,
    /// Also prove that all devices can issue messages and reductions in one order, as NCCL requires
    #[arg(long)]
    one_order: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Schedule {
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Show(show) => show.run(),
            Command::Check(check) => check.run(),
            Command::Compare(compare) => compare.run(),
            Command::Export(export) => export.run(),
            Command::Import(import) => import.run(),
            Command::Gallery(gallery) => gallery.run(),
            Command::Combine(combine) => combine.run(),
            Command::Explore(explore) => explore.run(),
        }
    }
}

impl List {
    fn run(self) -> Result<()> {
        if self.json {
            let entry = |s: &&dyn schedule::Schedule| {
                let (source, aliases) = (s.source(), s.aliases());
                json!({"name": s.name(), "aliases": aliases, "about": s.about(),
                       "paper": source.paper, "place": source.place})
            };
            let auto = json!({"name": AUTO, "about": ABOUT});
            let all: Vec<_> = SCHEDULES.iter().map(entry).chain([auto]).collect();
            return print(format!("{:#}", json!(all)));
        }
        let width = SCHEDULES.iter().map(|s| s.name().len()).max().unwrap_or(0);
        let line = |s: &&dyn schedule::Schedule| {
            let aliases: String = s.aliases().iter().map(|a| format!(" (also {a})")).collect();
            format!("{:<width$}  {}{aliases} [{}]\n", s.name(), s.about(), s.source().paper)
        };
        let auto = format!("{AUTO:<width$}  {ABOUT}");
        print(SCHEDULES.iter().map(line).chain([auto]).collect::<String>())
    }
}

impl Show {
    fn run(self) -> Result<()> {
        let format = self.drawing.format()?;
        let plan = Scheduled::of(self.schedule.name(), &self.shape, &self.costs)?;
        let plan = plan.without(&self.lost, 1, &|whole, _| self.costs.of_stages(whole))?;
        self.drawing.show(format, plan, self.costs.unit())
    }
}

impl Drawing {
    fn format(&self) -> Result<FileFormat> {
        Ok(match (self.json, self.format) {
            (true, _) => FileFormat::Json,
            (false, Some(format)) => format.into(),
            (false, None) => self.out.format()?.unwrap_or(FileFormat::Text),
        })
    }

    /// Draws a schedule whose times are in `unit`.
    fn show(self, format: FileFormat, plan: Scheduled, unit: &str) -> Result<()> {
        match format {
            FileFormat::Json => {
                self.work.warn_of_json();
                return self.out.deliver(&interchange::to_json(&plan.timetable));
            }
            FileFormat::Csv => {
                return To::file(self.out.out).write_csv(&plan.timetable);
            }
            _ => {}
        }
        let program = plan.prove()?;
        let timeline = plan.simulate(&program);
        let filled = self.work.fill((&program, &timeline), &plan.how, plan.costs())?;
        let (drawn, timeline) = match &filled {
            Some(filled) => (&filled.program, &filled.timeline),
            None => (&program, &timeline),
        };
        let title = title(&plan.timetable, unit);
        match format {
            FileFormat::Text => {}
            FileFormat::Html => {
                return self.out.deliver(&html::page(drawn, timeline, &title));
            }
            _ => return self.out.draw(format, &svg::step(drawn, timeline, &title)),
        }
        let screen = if self.out.format()?.is_some() { Screen::PLAIN } else { screen(false, 0) };
        let drawing = text::timeline_on(timeline, screen);
        let works = drawn.rules().works();
        let works = if works.is_empty() {
            String::new()
        } else {
            let marks = text::work_marks(works.iter().map(|work| work.name.as_str()));
            format!("work beside the training: {marks}\n")
        };
        let search = plan.search.map(|report| format!("\n{report}"));
        let search = search.unwrap_or_default();
        self.out.deliver(&format!(
            "{}\n{works}{}{search}",
            drawing.trim_end(),
            summary(&program, timeline, unit)
        ))
    }
}

impl Check {
    fn run(self) -> Result<()> {
        let (plan, program) = proven(&self.file, &self.passes, &self.costs)?;
        if self.one_order {
            prove_in_one_order(&program).with_context(|| self.file.display().to_string())?;
        }
        let (timetable, timeline) = (&plan.timetable, plan.simulate(&program));
        if self.json {
            let proof = json!({
                "schedule": timetable.schedule, "proven": true, "depth": timetable.rows.len(),
                "stages": program.placement().n_stages(), "micro_batches": program.micro_batches_per_step(),
                "steps": program.window().n_steps(), "weight_versions": program.weight_versions(),
                "messages": program.n_messages(), "channel_bound": program.channel_bound(),
                "peak_micro_batches": program.peaks(), "makespan": timeline.makespan(),
                "bubble_ratio": timeline.bubble_ratio(), "unit": self.costs.unit(),
                "one_order": self.one_order.then_some(true),
            });
            return print(format!("{proof:#}"));
        }
        let one_order = if self.one_order {
            "\nmessages and reductions have one order that every device can keep"
        } else {
            ""
        };
        print(format!("{}{one_order}", proof(&program, &timeline, self.costs.unit())))
    }
}

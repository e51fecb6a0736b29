//! `chimera schedule gallery`: draws every schedule for docs/gallery.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use chimera_core::render::svg;
use chimera_core::schedule::find;
use clap::{Args, Parser};

use crate::cli::commands::compare::{Comparison, HEADS, figures};
use crate::cli::parts::out::page_of;
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::entry::{Contender, ContenderRun};
use crate::cli::parts::schedule::own_work::WorkArgs;
use crate::cli::parts::schedule::shape::ShapeArgs;
use crate::cli::parts::terminal::console::write_whole;
use crate::cli::parts::terminal::output::{deliver, written_path};

/// The shape of all drawings, except for schedules that it does not fit.
const SHAPE: &str = "--depth 4 --micro-batches 8";
/// Shapes for those schedules: the first that fits is drawn.
const ELSEWHERE: [&str; 5] = [
    "--micro-batches 4",
    "--micro-batches 12",
    "--micro-batches 16",
    "--depth 8 --micro-batches 16",
    "--depth 2 --micro-batches 4",
];
/// Drawings beyond those of `compare`, with their costs.
const MORE: [(&str, &str); 4] = [
    ("chimera --micro-batches 4", ""),
    ("1f1b --bpipe", "--transfer 1"),
    ("1f1b --offload auto", "--transfer 1"),
    ("chimera --micro-batches 4", "--work factors=0.5 --work inverses=1"),
];

/// Draws every schedule, and a page that compares them
#[derive(Args)]
pub(crate) struct Gallery {
    /// Folder, which is created if it does not exist; or a single page, if the name ends in .html
    #[arg(short, long, value_name = "DIR|FILE", value_parser = written_path())]
    out: PathBuf,
}

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Setting {
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    work: WorkArgs,
}

impl Gallery {
    pub(crate) fn run(self) -> Result<()> {
        let write = |name: &str, content: String| write_whole(&self.out.join(name), &content);
        let setting = Setting::try_parse_from(SHAPE.split(' '))?;
        let entries = Contender::all(&setting.shape)?;
        let comparison = Comparison::of(&entries, &setting.shape, &setting.costs)?;
        let elsewhere = setting.elsewhere(&comparison)?;
        if self.out.extension().is_some_and(|ending| ending == "html") {
            let drawings = comparison.runs.iter().chain(&elsewhere);
            let drawings =
                drawings.map(|run| svg::step(&run.program, &run.timeline, &caption(run)));
            let all: String =
                [comparison.svg(&comparison.title())].into_iter().chain(drawings).collect();
            return deliver(Some(&self.out), &page_of("Gallery of schedules", &all));
        }
        std::fs::create_dir_all(&self.out)
            .with_context(|| format!("cannot make {}", self.out.display()))?;
        for run in comparison.runs.iter().chain(&elsewhere) {
            write(&file(run), svg::step(&run.program, &run.timeline, &caption(run)))?;
        }
        write("comparison.svg", comparison.svg(&comparison.title()))?;
        write("1f1b-and-chimera.svg", setting.frontispiece()?)?;
        write("README.md", page(&comparison, &elsewhere)?)
    }
}

impl Setting {
    /// Runs the schedules at other shapes.
    fn elsewhere(&self, comparison: &Comparison) -> Result<Vec<ContenderRun>> {
        let mut runs = Vec::new();
        for (label, _) in &comparison.refused {
            let mut entries = ELSEWHERE.iter().map(|shape| self.run(&format!("{label} {shape}")));
            runs.extend(entries.find_map(Result::ok));
        }
        for (label, costs) in MORE {
            let setting =
                Setting::try_parse_from(SHAPE.split(' ').chain(costs.split_whitespace()))?;
            let run = setting.run(label)?;
            let label =
                if costs.starts_with("--work") { format!("{label} {costs}") } else { run.label };
            runs.push(ContenderRun { label, ..run });
        }
        Ok(runs)
    }

    fn run(&self, label: &str) -> Result<ContenderRun> {
        Contender::parse(label, &self.shape)?.run_with(&self.costs, &self.work)
    }

    /// Draws 1F1B above Chimera on one scale: the picture in the README.
    fn frontispiece(&self) -> Result<String> {
        let (one, two) =
            (self.run("1f1b --micro-batches 4")?, self.run("chimera --micro-batches 4")?);
        let panels =
            [("1F1B, D = 4, N = 4", &one.timeline), ("Chimera, D = 4, N = 4", &two.timeline)];
        Ok(svg::stack(&panels))
    }
}

fn page(comparison: &Comparison, elsewhere: &[ContenderRun]) -> Result<String> {
    let mut page = String::from(
        "# Gallery\n\n\
         Every schedule, executed as early as possible with B = 2 F and free messages, without gradient\n\
         synchronisation, on one model: the forward of a D-th of it takes 1. Speed-up is over 1F1B at D = 4,\n\
         N = 8; peak is the most micro-batches whose activations a worker holds, copies those of the weights.\n\
         Drawn by `cargo xtask gallery`.\n\n\
         ![All schedules on one scale of time](comparison.svg)\n\n",
    );
    writeln!(
        page,
        "| schedule | D | N | {} |\n|---|---|---{}|",
        HEADS.join(" | "),
        "|--:".repeat(HEADS.len())
    )?;
    let rows = comparison.runs.iter().map(|run| (run, comparison.baseline));
    // Speed-up only compares runs of the same shape.
    for (run, baseline) in rows.chain(elsewhere.iter().map(|run| (run, None))) {
        let (name, (d, n)) = (slug(&run.label), shape(run));
        let figures = figures(run, baseline).join(" | ");
        writeln!(page, "| [{}](#{name}) | {d} | {n} | {figures} |", run.label)?;
    }
    for (label, reason) in &comparison.refused {
        writeln!(page, "\n`{label}` does not fit D = 4, N = 8: {reason}.")?;
    }
    let mut described = BTreeSet::new();
    for run in comparison.runs.iter().chain(elsewhere) {
        let schedule = find(run.program.schedule())?;
        writeln!(page, "\n## {}\n", slug(&run.label))?;
        if described.insert(schedule.name()) {
            let source = schedule.source();
            writeln!(page, "{}. {}, {}.\n", schedule.about(), source.paper, source.place)?;
        }
        writeln!(page, "![{}]({})", run.label, file(run))?;
    }
    Ok(page)
}

fn caption(run: &ContenderRun) -> String {
    let (d, n) = shape(run);
    format!("{}, D = {d}, N = {n}, B = 2 F", run.label)
}

fn shape(run: &ContenderRun) -> (usize, u32) {
    (run.program.placement().n_workers(), run.program.n_micro_batches())
}

fn file(run: &ContenderRun) -> String {
    slug(&run.label) + ".svg"
}

/// Converts a label to a file name and section name without dots, since some renderers drop dots
/// from link targets.
fn slug(label: &str) -> String {
    label.replace(" --", "-").replace([' ', '=', '.'], "-")
}

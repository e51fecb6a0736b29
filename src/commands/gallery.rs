//! `chimera schedule gallery`: every schedule drawn, for docs/gallery.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use chimera::core::analyze::{Timeline, UniformCosts, simulate};
use chimera::core::lower::{Lowering, Program, Sync, lower};
use chimera::core::render::svg;
use chimera::core::schedule::{SCHEDULES, Scaling, Schedule, Shape, find};
use clap::Args;

/// Draws every schedule into a folder, with a page that compares them
#[derive(Args)]
pub(super) struct Gallery {
    /// The folder; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// One drawing: a schedule at a shape.
struct Plate {
    file: String,
    title: String,
    program: Program,
    timeline: Timeline,
}

impl Gallery {
    pub(super) fn run(self) -> Result<()> {
        let write = |name: &str, content: String| {
            let path = self.out.join(name);
            std::fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        std::fs::create_dir_all(&self.out)
            .with_context(|| format!("cannot make {}", self.out.display()))?;
        let plates = plates()?;
        for plate in &plates {
            write(&plate.file, svg::timeline(&plate.timeline, &plate.title))?;
        }
        write("README.md", page(&plates)?)?;
        write("1f1b-and-chimera.svg", frontispiece()?)
    }
}

/// All schedules at D = 4, N = 8, and Chimera's variants.
fn plates() -> Result<Vec<Plate>> {
    let shape = Shape::new(4, 8);
    let mut plates = Vec::new();
    for schedule in SCHEDULES {
        plates.push(Plate::new(*schedule, schedule.name(), shape)?);
    }
    let chimera = find("chimera")?;
    let variants = [
        ("chimera-one-unit", Shape::new(4, 4)),
        ("chimera-four-pipes", Shape { n_pipes: 4, ..shape }),
        ("chimera-doubling", Shape { scaling: Scaling::Doubling, ..shape }),
        ("chimera-halving", Shape { scaling: Scaling::Halving, ..shape }),
    ];
    for (name, shape) in variants {
        plates.push(Plate::new(chimera, name, shape)?);
    }
    Ok(plates)
}

impl Plate {
    fn new(schedule: &dyn Schedule, name: &str, shape: Shape) -> Result<Plate> {
        let (program, timeline) = run(schedule, shape)?;
        let (d, n) = (shape.depth, shape.n_micro_batches);
        let title = format!("{name}, D = {d}, N = {n}, B = 2 F");
        Ok(Plate { file: format!("{name}.svg"), title, program, timeline })
    }
}

fn run(schedule: &dyn Schedule, shape: Shape) -> Result<(Program, Timeline)> {
    let how = Lowering { sync: Sync::AtEnd, ..Lowering::default() };
    let program = lower(&schedule.timetable(&shape)?, &how)?;
    // The same model for all: a chunk is a smaller stage.
    let share = shape.depth as f64 / program.placement().n_stages() as f64;
    let costs = UniformCosts::new(share, 2.0 * share, 0.0).per_units(program.units_per_micro());
    let timeline = simulate(&program, &costs);
    Ok((program, timeline))
}

fn page(plates: &[Plate]) -> Result<String> {
    let mut page = String::from(
        "# Gallery\n\n\
         Every schedule, executed as early as possible with B = 2 F and free messages, without gradient\n\
         synchronisation. The forward of a D-th of the model takes 1. Peak: most micro-batches whose\n\
         residuals a worker holds. Drawn by `cargo xtask gallery`.\n\n\
         | schedule | D | N | makespan | bubble ratio | peak | weight copies | messages |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for plate in plates {
        let Plate { file, program, timeline, .. } = plate;
        let name = file.trim_end_matches(".svg");
        let placement = program.placement();
        let copies = placement.replicas(chimera::core::ids::StageId(0)).len();
        let peak = program.peaks().iter().copied().fold(0.0, f64::max);
        writeln!(
            page,
            "| [{name}](#{name}) | {} | {} | {} | {:.3} | {peak} | {copies} | {} |",
            placement.n_workers(),
            program.n_micro_batches(),
            timeline.makespan(),
            timeline.bubble_ratio(),
            program.n_messages(),
        )?;
    }
    for plate in plates {
        let name = plate.file.trim_end_matches(".svg");
        let base = program_source(plate.program.schedule())?;
        writeln!(page, "\n## {name}\n\n{base}\n\n![{}]({})", plate.title, plate.file)?;
    }
    Ok(page)
}

fn program_source(schedule: &str) -> Result<String> {
    let schedule = find(schedule)?;
    let source = schedule.source();
    Ok(format!("{}. {}, {}.", schedule.about(), source.paper, source.place))
}

/// 1F1B above Chimera, on one scale: the picture of the README.
fn frontispiece() -> Result<String> {
    let shape = Shape::new(4, 4);
    let (_, one) = run(find("1f1b")?, shape)?;
    let (_, two) = run(find("chimera")?, shape)?;
    Ok(svg::stack(&[("1F1B, D = 4, N = 4", &one), ("Chimera, D = 4, N = 4", &two)]))
}

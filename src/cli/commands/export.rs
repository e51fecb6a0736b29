//! `chimera schedule export`: timetables and timelines for other programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use chimera_core::ids::PipeId;
use chimera_core::interchange::{program_to_json, to_comms_csv, to_csv, to_json};
use chimera_core::program::Program;
use chimera_core::render::{chrome, html, svg};
use chimera_core::timetable::Timetable;
use clap::{Args, ValueEnum};

use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::drawing::title;
use crate::cli::parts::schedule::scheduled::Scheduled;
use crate::cli::parts::schedule::shape::{ScheduleArg, ShapeArgs, required};
use crate::cli::parts::terminal::output::{deliver, is_standard_output};

/// Writes a schedule in a form that other programs read
#[derive(Args)]
#[command(mut_arg("name", required))]
pub(crate) struct Export {
    #[command(flatten)]
    schedule: ScheduleArg,
    /// What to write
    #[arg(long)]
    format: Format,
    #[command(flatten)]
    to: To,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
}

/// A format of an exported schedule.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The timetable, whole
    Json,
    /// The proven program, for executors: every instruction with what it eats, makes and whom it talks to
    ProgramJson,
    /// One pipe, as PyTorch's pipelining runtime loads it (`compute_only`)
    PytorchCsv,
    /// The proven program, as PyTorch's pipelining runtime executes it (`compute_comms`); of several pipes in virtual stages
    PytorchCommsCsv,
    /// The simulated step as a trace for ui.perfetto.dev or chrome://tracing
    Chrome,
    /// The simulated step, drawn
    Svg,
    /// A page with the drawing and the figures
    Html,
}

/// The destination of an export.
#[derive(Args)]
pub(crate) struct To {
    /// The file, or `-` [default: standard output]. Of several pipes, `pytorch-csv` writes FILE.pipe0.csv and
    /// so on
    #[arg(long, value_name = "FILE", requires = "format")]
    out: Option<PathBuf>,
    /// The pipe that `pytorch-csv` writes [default: all of them]
    #[arg(long, value_name = "PIPE", requires = "format")]
    pipe: Option<u16>,
}

impl Export {
    pub(crate) fn run(self) -> Result<()> {
        let of = match self.format {
            Format::PytorchCsv | Format::PytorchCommsCsv => Scheduled::of_whole_micro_batches,
            _ => Scheduled::of,
        };
        let plan = of(self.schedule.name(), &self.shape, &self.costs)?;
        let program = plan.prove()?;
        self.to.write((&plan, &program), self.format, &self.costs)
    }
}

impl To {
    /// Writes a timetable and the result of its proof.
    pub(crate) fn write(
        self,
        (plan, program): (&Scheduled, &Program),
        format: Format,
        costs: &CostArgs,
    ) -> Result<()> {
        let timetable = &plan.timetable;
        if format == Format::PytorchCsv {
            return self.write_csv(timetable);
        }
        if self.pipe.is_some() {
            bail!("--pipe is for --format pytorch-csv; the other formats hold all pipes");
        }
        if format == Format::Json {
            return deliver(self.out.as_deref(), &to_json(timetable));
        }
        if format == Format::ProgramJson {
            return deliver(self.out.as_deref(), &program_to_json(program));
        }
        if format == Format::PytorchCommsCsv {
            ensure!(
                !program.rules().has_moves(),
                "PyTorch's runtime has no actions that move saved activations: leave --bpipe and --offload out"
            );
            return deliver(self.out.as_deref(), &to_comms_csv(program)?);
        }
        let timeline = plan.simulate(program);
        let text = match format {
            Format::Chrome => chrome::trace(program, &timeline),
            Format::Html => html::page(program, &timeline, &title(timetable, costs)),
            _ => svg::timeline(&timeline, &title(timetable, costs)),
        };
        deliver(self.out.as_deref(), &text)
    }

    /// Writes the pipes that have micro-batches, one file per pipe.
    fn write_csv(self, timetable: &Timetable) -> Result<()> {
        let pipes: BTreeSet<PipeId> = timetable.ops().map(|op| op.pipe).collect();
        let choice = pipes.iter().map(|pipe| pipe.0.to_string()).collect::<Vec<_>>().join(", ");
        let one = match self.pipe {
            Some(pipe) => Some(PipeId(pipe)),
            None => pipes.first().copied().filter(|_| pipes.len() == 1),
        };
        match (one, self.out.filter(|out| !is_standard_output(out))) {
            (Some(pipe), _) if !pipes.contains(&pipe) => {
                bail!("no micro-batch goes through {pipe}: choose one of --pipe {choice}")
            }
            (Some(pipe), out) => deliver(out.as_deref(), &to_csv(timetable, pipe)?),
            (None, None) => bail!(
                "the micro-batches of {} go through {} pipes, and PyTorch's CSV holds one: choose one of \
                 --pipe {choice}, or name a file with --out and get one for each",
                timetable.schedule,
                pipes.len()
            ),
            (None, Some(out)) => pipes.into_iter().try_for_each(|pipe| {
                deliver(Some(&of_pipe(&out, pipe)), &to_csv(timetable, pipe)?)
            }),
        }
    }
}

/// The file of a pipe: `a.pipe0.csv` for `a.csv` or `a`.
fn of_pipe(out: &Path, PipeId(pipe): PipeId) -> PathBuf {
    let ends = out.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv"));
    let mut file = if ends { out.with_extension("") } else { out.to_path_buf() }.into_os_string();
    file.push(format!(".pipe{pipe}.csv"));
    file.into()
}

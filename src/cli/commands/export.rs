//! `chimera schedule export`: timetables and timelines for other programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::analyze::{Timeline, simulate};
use chimera_core::ids::PipeId;
use chimera_core::interchange::{program_to_json, to_comms_csv, to_csv, to_json};
use chimera_core::program::Program;
use chimera_core::render::report::title;
use chimera_core::render::{chrome, html, svg, text};
use chimera_core::timetable::Timetable;
use clap::{Args, ValueEnum};

use crate::cli::parts::out::{FileFormat, draw, format_of};
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::network::NetworkArgs;
use crate::cli::parts::schedule::scheduled::Scheduled;
use crate::cli::parts::schedule::shape::{ScheduleArg, ShapeArgs, required};
use crate::cli::parts::terminal::console::warn;
use crate::cli::parts::terminal::output::{deliver, is_standard_output};

/// Writes a schedule for other programs
#[derive(Args)]
#[command(mut_arg("name", required))]
pub(crate) struct Export {
    #[command(flatten)]
    schedule: ScheduleArg,
    /// Format to write [default: the ending of --out; .csv is pytorch-csv]
    #[arg(long, required_unless_present = "out")]
    format: Option<Format>,
    #[command(flatten)]
    to: To,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    network: NetworkArgs,
}

/// The format of a timetable.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The timetable
    Json,
    /// The proven program for executors: every instruction with its inputs, outputs and peers
    ProgramJson,
    /// One pipe, as PyTorch's pipelining runtime loads it (`compute_only`)
    PytorchCsv,
    /// The proven program, as PyTorch's pipelining runtime executes it (`compute_comms`); several pipes become virtual stages
    PytorchCommsCsv,
    /// The simulated step as a trace for ui.perfetto.dev or chrome://tracing
    Chrome,
    /// The simulated step, drawn
    Svg,
    /// A page with the drawing and the figures
    Html,
    /// The simulated step, drawn as text
    Text,
    /// The simulated step, drawn, for papers; needs --out
    Png,
    /// The simulated step, drawn, for papers; needs --out
    Pdf,
}

/// The destination of an export.
#[derive(Args)]
pub(crate) struct To {
    /// File, or `-` for standard output [default: -]. With several pipes, `pytorch-csv` writes FILE.pipe0.csv and so on
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Pipe that `pytorch-csv` writes [default: all]
    #[arg(long, value_name = "PIPE")]
    pipe: Option<u16>,
}

impl Export {
    pub(crate) fn run(self) -> Result<()> {
        let format = self.to.format(self.format)?.context("name a --format")?;
        let Export { schedule, to, shape, costs, network, .. } = self;
        if matches!(format, Format::PytorchCsv | Format::PytorchCommsCsv) {
            let plan = Scheduled::of_whole_micro_batches(schedule.name(), &shape, &costs)?;
            let program = plan.prove()?;
            if let Some((option, _)) = network.job.0.iter().next() {
                warn(&format!("`{option}` has no effect: PyTorch's CSV has no reductions"));
            }
            let timeline = || Ok(plan.simulate(&program));
            return to.write((&plan.timetable, &program), format, (costs.unit(), &timeline));
        }
        network.warn_of_unread();
        network.check_unit(&costs)?;
        let chosen = shape.chooses_placement(schedule.name());
        let of_stages = |timetable: &Timetable| costs.of(chosen, timetable);
        let plan = Scheduled::on(&network, schedule.name(), &shape, &costs, (&of_stages, false))?;
        let program = plan.prove()?;
        let timeline = || {
            let costs = network.with_sums(plan.costs().clone(), &program)?;
            let linked = network.on_topology(&program, &costs.traffic(), &costs)?;
            Ok(linked.map_or_else(|| simulate(&program, &costs), |linked| linked.step.timeline))
        };
        to.write((&plan.timetable, &program), format, (costs.unit(), &timeline))
    }
}

impl To {
    /// A file, and all pipes.
    pub(crate) fn file(out: Option<PathBuf>) -> To {
        To { out, pipe: None }
    }

    /// Returns the given format, or that of the file's ending; `None` if neither is given.
    pub(crate) fn format(&self, given: Option<Format>) -> Result<Option<Format>> {
        let file = self.out.as_deref().filter(|out| !is_standard_output(out));
        if given.is_some() || file.is_none() {
            ensure!(given.is_some() || self.pipe.is_none(), "--pipe is for --format pytorch-csv");
            return Ok(given);
        }
        let format = file.map(format_of).transpose()?;
        Ok(format.map(|format| match format {
            FileFormat::Text => Format::Text,
            FileFormat::Svg => Format::Svg,
            FileFormat::Html => Format::Html,
            FileFormat::Json => Format::Json,
            FileFormat::Csv => Format::PytorchCsv,
            FileFormat::Png => Format::Png,
            FileFormat::Pdf => Format::Pdf,
        }))
    }

    /// Writes a timetable, the result of its proof, or its timeline in `unit`.
    pub(crate) fn write(
        self,
        (timetable, program): (&Timetable, &Program),
        format: Format,
        (unit, timeline): (&str, &dyn Fn() -> Result<Timeline>),
    ) -> Result<()> {
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
        let timeline = timeline()?;
        let title = title(timetable, unit);
        let drawn = match format {
            Format::Png => Some(FileFormat::Png),
            Format::Pdf => Some(FileFormat::Pdf),
            _ => None,
        };
        if let Some(drawn) = drawn {
            return draw(self.out.as_deref(), drawn, &svg::timeline(&timeline, &title));
        }
        let text = match format {
            Format::Text => text::timeline(&timeline),
            Format::Chrome => chrome::trace(program, &timeline),
            Format::Html => html::page(program, &timeline, &title),
            _ => svg::timeline(&timeline, &title),
        };
        deliver(self.out.as_deref(), &text)
    }

    /// Writes the pipes that have micro-batches, one file per pipe.
    pub(crate) fn write_csv(self, timetable: &Timetable) -> Result<()> {
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

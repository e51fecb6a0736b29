//! The workers of an evaluation or of text generation, and the program by which they pass
//! micro-batches on.

use anyhow::{Result, ensure};
use chimera_core::comm::{Comm, Endpoint, Host};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::lower::{Lowering, forward_only, lower};
use chimera_core::program::Program;
use clap::Args;

use crate::cli::commands::train::ranks;
use crate::cli::parts::schedule::costs::{CostArgs, at_least_one};
use crate::cli::parts::schedule::entry::Contender;
use crate::cli::parts::schedule::shape::ShapeArgs;
use crate::device::{Device, Devices, OpenDevice, Precision, n_cores};
use crate::run::Seat;
use crate::run::evaluate::Staged;
use crate::settings::schedules::is_file;
use crate::settings::{Survive, Transport};
use crate::transport::{Over, choose};

/// The most micro-batches of a worker before all workers meet.
const MOST_PER_WORKER: usize = 32;

/// The workers of a command that only goes forward.
#[derive(Args)]
pub(crate) struct Pipeline {
    /// Workers of a pipeline, each with its stages of the model and a GPU of its own. Also called pipeline-parallel size
    /// [default: 1, or the workers of a schedule's file]
    #[arg(short = 'D', long, value_name = "WORKERS", value_parser = at_least_one)]
    depth: Option<usize>,
    /// Schedule whose forwards are run, with options of its own in the same quotes, such as "chimera --pipes 4"; or a file
    #[arg(long, value_name = "SCHEDULE", default_value = "gpipe")]
    schedule: String,
    /// Micro-batches (windows of the text, or groups of prompts) that a pipeline runs before all workers synchronize
    /// [default: all, up to 32 for each worker]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    micro_batches: Option<usize>,
    /// Pipelines side by side
    #[arg(short = 'W', long, value_name = "PIPELINES", default_value_t = 1, value_parser = at_least_one)]
    width: usize,
}

impl Pipeline {
    /// Returns true if there is one worker. A schedule's file counts as several, whatever it says.
    pub(crate) fn is_one_worker(&self) -> bool {
        !is_file(&self.schedule) && self.depth() == 1 && self.width == 1
    }

    /// Workers of a pipeline, unless the schedule's file gives them.
    fn depth(&self) -> usize {
        self.depth.unwrap_or(1)
    }

    /// Pipelines side by side.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Proves the program for `n_samples` windows or prompts.
    pub(crate) fn program(&self, n_samples: usize) -> Result<Program> {
        let shape = ShapeArgs::default();
        let entry = if is_file(&self.schedule) {
            Contender::parse(&self.schedule, &shape)?
        } else {
            let n = self.micro_batches.unwrap_or_else(|| self.at_a_time(n_samples));
            let (name, own) = self.schedule.split_once(' ').unwrap_or((&self.schedule, ""));
            let depth = self.depth();
            let text = format!("{name} --depth {depth} --micro-batches {n} {own}");
            Contender::parse(text.trim_end(), &shape)?
        };
        let timetable = entry.of_whole_micro_batches(&CostArgs::default())?.timetable;
        let workers = timetable.rows.len();
        if let Some(depth) = self.depth {
            ensure!(
                depth == workers,
                "--depth {depth}: {} is for {workers} workers, so leave --depth out",
                timetable.schedule
            );
        }
        ensure!(
            timetable.units_per_micro == 1,
            "{} cuts micro-batches, and a window of text stays whole: choose a schedule of whole micro-batches",
            timetable.schedule
        );
        Ok(lower(&forward_only(timetable), &Lowering::default())?)
    }

    /// Returns the micro-batches of a pipeline's step. Schedules in two directions take even numbers for
    /// each worker.
    fn at_a_time(&self, n_samples: usize) -> usize {
        let depth = self.depth();
        let of_pipeline = n_samples.div_ceil(self.width);
        let even = if self.schedule == "gpipe" { 1 } else { 2 * depth };
        of_pipeline.next_multiple_of(even).min(MOST_PER_WORKER * depth)
    }
}

/// Runs the workers of a model, each on its share of the cores: all in this process, or, if a launcher has
/// started several processes, this one's over tensors of up to `longest` elements. Returns the result on
/// the first.
pub(crate) fn forwards<T>(
    (model, longest): (&Staged<'_>, usize),
    device: Device,
    in_threads: impl FnOnce(&Devices, usize) -> Result<T>,
    on_rank: impl Fn(&OpenDevice, &mut dyn Comm<Host>, usize) -> Result<T, Fault>,
) -> Result<Option<T>> {
    let (over, _) = choose(Transport::Auto, Survive::Off)?;
    let n_ranks = model.n_ranks();
    if over != Over::Mpi {
        let devices = Devices::open(&vec![device; n_ranks], 1, Precision::F32)?;
        return Ok(Some(in_threads(&devices, (n_cores() / n_ranks).max(1))?));
    }
    ranks::with(longest, &|comm: &mut dyn Comm<Host>, _: &str| {
        let (seat, me) = (Seat::launched(&comm), comm.rank());
        let unfit = |why: String| Fault::new(Class::Usage, me, why);
        if comm.n_ranks() as usize != n_ranks {
            return Err(unfit(format!(
                "{} rank(s) are not {n_ranks} worker(s): start as many, or choose --depth and --width for them",
                comm.n_ranks()
            )));
        }
        let device = OpenDevice::open(device, seat.local, Precision::F32);
        let device = device.map_err(|error| unfit(format!("{error:#}")))?;
        let threads = (n_cores() / seat.n_local as usize).max(1);
        let done = on_rank(&device, comm, threads)?;
        Ok((me == Rank(0)).then_some(done))
    })
}

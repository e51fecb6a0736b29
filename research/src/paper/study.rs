//! The simulations of the paper's evaluation.

use anyhow::{Context, Result, ensure};
use chimera_core::lower::Sync;

use super::fit::fit;
use super::job::{Constants, Job, Workload};
use super::readings::{Bar, Figure, Machine, MemoryCase, Readings};
use super::tuning::Tuned;

/// Bytes in a GB.
const GB: f64 = 1e9;
/// Part of a device's memory that a training can use; the driver takes the rest.
const USABLE: f64 = 0.92;
/// Schedules whose memory Fig. 9 compares.
const COMPARED: [&str; 4] = ["chimera", "dapple", "gpipe", "gems"];
/// The shares of its members' time that a reduction takes in Fig. 12.
pub(super) const SHARES: [f64; 3] = [0.0, 0.6, 0.9];
/// Sequences per step in Fig. 9.
const BATCH: usize = 512;

/// The machine whose rate is held, to see how far the fit decides it.
const HELD: &str = "Piz Daint";
/// The rates at which it is held, in fitted ones.
const HELD_AT: [f64; 4] = [0.95, 1.0, 1.04, 1.08];

/// Results of the simulation.
pub(super) struct Study<'r> {
    pub(super) machines: Vec<Fitted<'r>>,
    pub(super) figures: Vec<Simulated<'r>>,
    /// Constants of [`HELD`] with its rate held at each of [`HELD_AT`], and the mean of absolute
    /// errors of each [`Kind`].
    pub(super) held: Vec<(Constants, [f64; 3])>,
    /// Figs. 10 and 11.
    pub(super) tuned: Vec<Tuned<'r>>,
    /// Speed-up of eager-opt over eager reduction, by row of Fig. 12 and for each of [`SHARES`].
    pub(super) eager_opt: Vec<[f64; 3]>,
    /// Fig. 15: throughput of a node among many over that of a node among few.
    pub(super) weak_scaling: f64,
    /// The least and the most that a worker needs in GB, by row of Fig. 9 and by schedule.
    pub(super) memory: Vec<Vec<(&'static str, [f64; 2])>>,
}

/// A machine with its fitted constants.
pub(super) struct Fitted<'r> {
    pub(super) machine: &'r Machine,
    pub(super) constants: Constants,
    pub(super) n_bars: usize,
}

/// A figure with its simulated bars.
pub(super) struct Simulated<'r> {
    pub(super) figure: &'r Figure,
    pub(super) bars: Vec<Outcome<'r>>,
}

/// The simulated values of a bar.
pub(super) struct Outcome<'r> {
    pub(super) bar: &'r Bar,
    pub(super) job: Job,
    /// Sequences per second, by simulation.
    pub(super) throughput: f64,
    /// Sequences per second, by the closed form.
    pub(super) closed_form: Option<f64>,
}

impl Outcome<'_> {
    /// The relative difference of the simulation from the reading.
    pub(super) fn error(&self) -> Option<f64> {
        Some(self.throughput / self.bar.reading? - 1.0)
    }
}

/// The kinds of bars whose errors are counted separately.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Fitted,
    Synchronous,
    Asynchronous,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Fitted, Kind::Synchronous, Kind::Asynchronous];

    pub(super) fn of(bar: &Bar) -> Kind {
        match (bar.fitted, bar.is_asynchronous()) {
            (true, _) => Kind::Fitted,
            (false, false) => Kind::Synchronous,
            (false, true) => Kind::Asynchronous,
        }
    }

    /// The mean of the absolute errors of its bars.
    pub(super) fn mean_error(self, figures: &[Simulated<'_>]) -> f64 {
        let bars = figures.iter().flat_map(|figure| &figure.bars);
        let errors =
            bars.filter(|outcome| Kind::of(outcome.bar) == self).filter_map(Outcome::error);
        let errors: Vec<f64> = errors.map(f64::abs).collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    }
}

impl Simulated<'_> {
    /// The bar that is the highest here among those the paper compares, and its margin over the
    /// next.
    pub(super) fn highest(&self) -> Option<(&str, f64)> {
        let compared = self.bars.iter().filter(|outcome| self.figure.compares(outcome.bar));
        let mut compared: Vec<_> = compared.collect();
        compared.sort_by(|a, b| b.throughput.total_cmp(&a.throughput));
        let [first, second, ..] = compared[..] else { return None };
        Some((&first.bar.name, first.throughput / second.throughput - 1.0))
    }
}

impl<'r> Fitted<'r> {
    /// Fits the constants of a machine, the link again if the rate is held at some times the fitted.
    fn of(readings: &'r Readings, machine: &'r Machine, times: f64) -> Result<Fitted<'r>> {
        let mut bars = Vec::new();
        for figure in readings.figures.iter().filter(|figure| figure.machine == machine.name) {
            let workload = workload(figure)?;
            for bar in figure.bars.iter().filter(|bar| bar.fitted) {
                let size = bar.size.with_context(|| format!("{} is fitted without B", bar.name))?;
                bars.push((workload.bar(bar, size)?, bar.reading.context("fitted to no reading")?));
            }
        }
        ensure!(bars.len() >= 3, "{}: three constants need as many bars", machine.name);
        let half = machine.half_rate_gflop * GB;
        let mut constants = fit(&bars, half, None);
        if times != 1.0 && machine.name == HELD {
            constants = fit(&bars, half, Some(constants.flops * times));
        }
        Ok(Fitted { machine, constants, n_bars: bars.len() })
    }
}

impl<'r> Study<'r> {
    /// Fits the constants of each machine, and simulates everything with them.
    pub(super) fn of(readings: &'r Readings) -> Result<Study<'r>> {
        let machines = fitted(readings, 1.0)?;
        let figures = simulated(readings, &machines)?;
        let held = |times| {
            let machines = fitted(readings, times)?;
            let figures = simulated(readings, &machines)?;
            let its = machines.iter().find(|fitted| fitted.machine.name == HELD);
            let its = its.with_context(|| format!("there is no {HELD}"))?;
            Ok((its.constants, Kind::ALL.map(|kind| kind.mean_error(&figures))))
        };
        Ok(Study {
            held: HELD_AT.into_iter().map(held).collect::<Result<_>>()?,
            tuned: tuned(readings, &machines)?,
            eager_opt: eager_opt(readings, &machines)?,
            weak_scaling: weak_scaling(readings, &machines)?,
            memory: readings.memory.iter().map(memory_of).collect::<Result<_>>()?,
            machines,
            figures,
        })
    }
}

/// The machines with their constants, see [`Fitted::of`].
fn fitted(readings: &Readings, times: f64) -> Result<Vec<Fitted<'_>>> {
    readings.machines.iter().map(|machine| Fitted::of(readings, machine, times)).collect()
}

fn simulated<'r>(readings: &'r Readings, machines: &[Fitted<'_>]) -> Result<Vec<Simulated<'r>>> {
    let mut figures = Vec::new();
    for figure in &readings.figures {
        let memory = readings.machine(figure)?.memory_gb * GB * USABLE;
        let (workload, constants) = (workload(figure)?, constants(machines, figure));
        let outcome = |bar: &'r Bar| {
            let job = workload.fitting_job(bar, memory, &constants)?;
            let (throughput, closed_form) =
                (job.throughput(&constants), job.closed_form(&constants));
            Ok(Outcome { bar, throughput, closed_form, job })
        };
        let bars = figure.bars.iter().map(outcome).collect::<Result<_>>()?;
        figures.push(Simulated { figure, bars });
    }
    Ok(figures)
}

/// The constants of a figure's machine.
fn constants(machines: &[Fitted<'_>], figure: &Figure) -> Constants {
    let its = machines.iter().find(|fitted| fitted.machine.name == figure.machine);
    its.unwrap_or(&machines[0]).constants
}

fn workload(figure: &Figure) -> Result<Workload> {
    let (model, sequence) = (figure.model()?, figure.sequence);
    Ok(Workload { model, sequence, workers: figure.nodes, batch: figure.batch })
}

/// Figs. 10 and 11.
fn tuned<'r>(readings: &'r Readings, machines: &[Fitted<'_>]) -> Result<Vec<Tuned<'r>>> {
    let mut tuned = Vec::new();
    for tuning in &readings.tuning {
        let figure = readings.figure(&tuning.like)?;
        let memory = readings.machine(figure)?.memory_gb * GB * USABLE;
        let (workload, constants) = (workload(figure)?, constants(machines, figure));
        for bar in &tuning.best {
            tuned.push(Tuned::of(tuning, bar, &workload, memory, &constants)?);
        }
    }
    Ok(tuned)
}

/// Fig. 12: Bert-48 by Chimera as in Fig. 13.
fn eager_opt(readings: &Readings, machines: &[Fitted<'_>]) -> Result<Vec<[f64; 3]>> {
    let figure = readings.figure("13, Bert-48")?;
    let constants = constants(machines, figure);
    let Some(bar) = figure.bars.iter().find(|bar| Some(&*bar.name) == figure.best()) else {
        return Ok(Vec::new());
    };
    let size = bar.size.unwrap_or(1);
    let ratio = |row: &super::readings::EagerOpt| {
        let workload = Workload { workers: row.nodes, batch: row.batch, ..workload(figure)? };
        let job = |sync| workload.job(bar, size, sync);
        let (eager, opt) = (job(Sync::Eager)?, job(Sync::EagerOpt)?);
        Ok(SHARES.map(|share| {
            let constants = Constants { share, ..constants };
            eager.step(&constants) / opt.step(&constants)
        }))
    };
    readings.eager_opt.iter().map(ratio).collect()
}

/// Fig. 15: GPT-2 by Chimera as in Fig. 1, a sequence for each node.
fn weak_scaling(readings: &Readings, machines: &[Fitted<'_>]) -> Result<f64> {
    let figure = readings.figure("1")?;
    let (constants, bar) = (constants(machines, figure), &figure.bars[0]);
    let per_node = |nodes: usize| {
        let workload = Workload { workers: nodes, batch: nodes, ..workload(figure)? };
        let job = workload.job(bar, bar.size.unwrap_or(1), Sync::EagerOpt)?;
        Ok::<_, anyhow::Error>(job.throughput(&constants) / nodes as f64)
    };
    let [few, many] = readings.weak_scaling.nodes;
    Ok(per_node(many)? / per_node(few)?)
}

fn memory_of(case: &MemoryCase) -> Result<Vec<(&'static str, [f64; 2])>> {
    let workload = Workload {
        model: case.model()?,
        sequence: case.sequence,
        workers: case.width * case.depth,
        batch: BATCH,
    };
    let of_schedule = |schedule: &'static str| {
        let bar = Bar::plain(schedule, case.depth);
        let bytes = workload.job(&bar, case.size, Sync::EagerOpt)?.worker_bytes();
        let least = bytes.iter().copied().fold(f64::INFINITY, f64::min);
        let most = bytes.iter().copied().fold(0.0, f64::max);
        Ok((schedule, [least / GB, most / GB]))
    };
    COMPARED.into_iter().map(of_schedule).collect()
}

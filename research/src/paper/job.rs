//! A configuration, proven, and the time of its step by the simulator and by the closed form.

use anyhow::{Context, Result, ensure};
use chimera_core::analyze::{
    ClosedForm, Link, Network, NetworkCosts, Reduced, ReductionAlgorithm, peak_working_bytes,
    simulate,
};
use chimera_core::costs::{StageBytes, StageCosts, UniformCosts};
use chimera_core::ids::{StageId, WorkerId};
use chimera_core::lower::{Hoist, Lowering, Recompute, Sync, lower_at, recompute};
use chimera_core::model::{Cut, ModelConfig, memory};
use chimera_core::program::Program;
use chimera_core::schedule::{Scaling, Shape, find};
use chimera_core::update::Update;

use super::products::{Launched, products, saved};
use super::readings::Bar;

/// Bytes of an f32.
const ELEMENT_BYTES: f64 = 4.0;
/// Copies of a weight: the weight, its gradient, and AdamW's two moments. Further weight versions
/// are added.
const STATE: f64 = 4.0;

/// Latency of a round of a reduction: of a library in C++ over TCP, of which a message's 9 ms of
/// Python threads and copies are no part. Not fitted.
pub(super) const ROUND_S: f64 = 1e-4;

/// Constants that are fitted to a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Constants {
    /// Floating-point operations per second of large products.
    pub(super) flops: f64,
    /// Operations of a product that reaches half of it. Not fitted.
    pub(super) half: f64,
    /// The link of a message; a reduction has its bandwidth.
    pub(super) link: Link,
    /// The share of compute and messages that a reduction takes while it runs. Not fitted.
    pub(super) share: f64,
}

/// A training: its model, its batch and its workers.
#[derive(Clone)]
pub(super) struct Workload {
    pub(super) model: ModelConfig,
    pub(super) sequence: usize,
    pub(super) workers: usize,
    /// Sequences per step.
    pub(super) batch: usize,
}

/// A proven configuration.
pub(super) struct Job {
    pub(super) width: usize,
    pub(super) micro_batches: usize,
    pub(super) size: usize,
    batch: f64,
    /// Programs by window: one for a synchronous schedule, two for others, whose difference is their
    /// steady state.
    programs: Vec<Program>,
    /// Floating-point operations of a micro-batch's forward, by stage.
    flops: Vec<f64>,
    /// Products of a forward, by stage.
    products: Vec<f64>,
    bytes: Vec<StageBytes>,
    /// Gradient bytes of each tensor, by stage.
    gradients: Vec<Vec<f64>>,
}

impl Workload {
    /// The job of a bar whose micro-batches have `size` sequences.
    pub(super) fn job(&self, bar: &Bar, size: usize, sync: Sync) -> Result<Job> {
        let width = self.workers / bar.depth;
        let micro_batches = self.batch / (width * size);
        ensure!(
            width * bar.depth == self.workers && micro_batches * width * size == self.batch,
            "{}: {} workers and {} sequences cannot be shared out",
            bar.name,
            self.workers,
            self.batch
        );
        let cuts = even(&self.model, bar.depth)?;
        let per_micro = |cut: &Cut| self.model.forward_flops(cut, self.sequence) * size as f64;
        let flops: Vec<f64> = cuts.iter().map(per_micro).collect();
        let bytes = cuts.iter().map(|cut| self.bytes(cut));
        let gradients = |cut: &Cut| {
            let tensors = self.model.params(cut).into_iter();
            tensors.map(|tensor| tensor.n_elements() as f64 * ELEMENT_BYTES).collect()
        };
        let programs = |window| program(bar, micro_batches, window, sync, &flops);
        // Long enough for every worker to be past its first forwards.
        let short = (2 * bar.depth).div_ceil(micro_batches).max(2) as u32;
        let windows = if bar.is_asynchronous() { vec![short, 2 * short] } else { vec![1] };
        Ok(Job {
            width,
            micro_batches,
            size,
            batch: self.batch as f64,
            programs: windows.into_iter().map(programs).collect::<Result<_>>()?,
            bytes: bytes.collect::<Result<_>>()?,
            gradients: cuts.iter().map(gradients).collect(),
            products: cuts.iter().map(products).collect(),
            flops,
        })
    }

    /// The job of a bar with its way to reduce gradients.
    pub(super) fn bar(&self, bar: &Bar, size: usize) -> Result<Job> {
        self.job(bar, size, bar.sync())
    }

    /// The job of a bar with its micro-batch size, or otherwise with the fastest that fits into some
    /// bytes.
    pub(super) fn fitting_job(&self, bar: &Bar, memory: f64, constants: &Constants) -> Result<Job> {
        if let Some(size) = bar.size {
            return self.bar(bar, size);
        }
        let most = self.batch * bar.depth / self.workers;
        let sizes = std::iter::successors(Some(1), |size| Some(size * 2));
        let sizes = sizes.take_while(|size| *size <= most && most.is_multiple_of(*size));
        let jobs = sizes.filter_map(|size| self.bar(bar, size).ok());
        let fit = jobs.filter(|job| job.most_bytes() <= memory);
        let timed = fit.map(|job| (job.throughput(constants), job));
        let fastest = timed.max_by(|a, b| a.0.total_cmp(&b.0));
        let fastest = fastest.with_context(|| format!("{} fits with no micro-batch", bar.name))?;
        Ok(fastest.1)
    }

    /// The bytes of a stage for a sample, with what PyTorch saves in blocks.
    fn bytes(&self, cut: &Cut) -> Result<StageBytes> {
        let counted = |cut: &Cut| {
            let memory = memory(&self.model, cut, self.sequence, false, ELEMENT_BYTES as u64)?;
            Ok::<_, anyhow::Error>(memory.sample)
        };
        let inner = |n| Cut { blocks: 0..n, first: false, last: false, ..cut.clone() };
        let of_block = counted(&inner(2))?.saved - counted(&inner(1))?.saved;
        let mut bytes = counted(cut)?;
        bytes.saved += cut.blocks.len() as f64 * (saved(&self.model, self.sequence) - of_block);
        Ok(bytes)
    }
}

/// An equal number of layers in every stage; the embedding is in the first and the head in the
/// last.
fn even(model: &ModelConfig, n_stages: usize) -> Result<Vec<Cut>> {
    let n = model.layers / n_stages;
    ensure!(n * n_stages == model.layers, "{} layers in {n_stages} stages", model.layers);
    let cut = |stage: usize| Cut {
        blocks: stage * n..(stage + 1) * n,
        first: stage == 0,
        last: stage + 1 == n_stages,
        ..Cut::default()
    };
    Ok((0..n_stages).map(cut).collect())
}

fn program(
    bar: &Bar,
    micro_batches: usize,
    window: u32,
    sync: Sync,
    flops: &[f64],
) -> Result<Program> {
    let shape = Shape {
        n_pipes: bar.pipes.unwrap_or(2),
        scaling: match &bar.scaling {
            Some(name) => name.parse::<Scaling>().map_err(anyhow::Error::msg)?,
            None => Scaling::Direct,
        },
        window,
        ..Shape::new(bar.depth, micro_batches as u32)
    };
    let timetable = find(&bar.schedule)?.timetable(&shape)?;
    let costs = compute(flops, timetable.units_per_micro);
    let how = Lowering { sync, ..Lowering::default() };
    if !bar.recompute {
        return Ok(lower_at(&timetable, &how, &costs)?);
    }
    let last = StageId((bar.depth - 1) as u16);
    let keeps = |stage| bar.keeps_last && stage == last;
    let of_stage = |_, stage| if keeps(stage) { Recompute::None } else { Recompute::Full };
    // As in frameworks: within the backward.
    let timetable = recompute(&timetable, of_stage, Hoist::OnDemand, &how, &costs)?;
    Ok(lower_at(&timetable, &how, &costs)?)
}

/// Costs in units of one floating-point operation. A backward takes as long as two forwards.
fn compute(flops: &[f64], units: u32) -> StageCosts {
    let stage = |forward: &f64| UniformCosts::new(*forward, 2.0 * forward, 0.0).per_units(units);
    StageCosts::new(flops.iter().map(stage).collect())
}

impl Job {
    /// Seconds of a step, or of one more step of a schedule without a flush, by simulation.
    pub(super) fn step(&self, constants: &Constants) -> f64 {
        let makespan = |program| self.makespan(program, constants);
        match &self.programs[..] {
            [short, long] => {
                let n_steps = long.window().n_steps() - short.window().n_steps();
                (makespan(long) - makespan(short)) / f64::from(n_steps)
            }
            programs => programs.iter().map(makespan).sum(),
        }
    }

    /// Sequences per second.
    pub(super) fn throughput(&self, constants: &Constants) -> f64 {
        self.batch / self.step(constants)
    }

    fn makespan(&self, program: &Program, constants: &Constants) -> f64 {
        let costs = self.costs(program, constants);
        simulate(program, &costs.with_sums(program, &self.gradients, &[])).makespan()
    }

    /// Costs of everything except reductions.
    fn costs(&self, program: &Program, constants: &Constants) -> NetworkCosts<Launched> {
        let units = program.units_per_micro();
        let flops: Vec<f64> = self.flops.iter().map(|flops| flops / constants.flops).collect();
        let messages: Vec<f64> =
            self.bytes.iter().map(|stage| stage.output * self.size as f64).collect();
        let network = Network {
            width: self.width,
            ranks_per_node: 1,
            inside: constants.link,
            between: constants.link,
            adapters: 1,
            blocking: true,
            reductions: ReductionAlgorithm::Doubling,
            round_alpha: Some(ROUND_S),
            reduction_share: constants.share,
        };
        let product = constants.half / constants.flops;
        let forwards = self.products.iter().map(|n| n * product).collect();
        let (compute, placement) = (compute(&flops, units), program.placement());
        let compute = Launched { compute, forwards };
        NetworkCosts::of_messages(compute, network, placement, units, &messages)
    }

    /// Sequences per second by the closed form, which holds for synchronous schedules.
    pub(super) fn closed_form(&self, constants: &Constants) -> Option<f64> {
        let program = &self.programs[0];
        if program.window().update() != Update::Flush {
            return None;
        }
        let bytes: Vec<f64> = self.gradients.iter().map(|tensors| tensors.iter().sum()).collect();
        let reduced = Reduced { bytes: &bytes, width: self.width, link: constants.link };
        let form = ClosedForm::of(program, &self.costs(program, constants), reduced);
        Some(self.batch / form.step())
    }

    /// Bytes that the worker with the most needs.
    pub(super) fn most_bytes(&self) -> f64 {
        self.worker_bytes().into_iter().fold(0.0, f64::max)
    }

    /// Bytes that each worker needs at its peak: weights, gradients, moments, activations.
    pub(super) fn worker_bytes(&self) -> Vec<f64> {
        let program = &self.programs[0];
        let samples = self.size as f64 / f64::from(program.units_per_micro());
        let peaks = peak_working_bytes(program, &self.bytes, samples);
        let (placement, versions) = (program.placement(), program.weight_versions());
        let state = |worker: usize| {
            let stages = placement.stages_of(WorkerId(worker as u16));
            let weights: f64 = stages.iter().flat_map(|stage| &self.gradients[stage.index()]).sum();
            weights * (STATE - 1.0 + f64::from(versions[worker]))
        };
        peaks.iter().enumerate().map(|(worker, peak)| peak + state(worker)).collect()
    }
}

//! Figs. 10 and 11: the shapes of a baseline that fit into memory, and the fastest of them.

use anyhow::{Context, Result};

use super::job::{Constants, Job, Workload};
use super::readings::{Bar, Tuning};

/// A baseline's fastest shape in the paper and here.
pub(super) struct Tuned<'r> {
    pub(super) tuning: &'r Tuning,
    pub(super) bar: &'r Bar,
    /// Sequences per second of the paper's shape.
    pub(super) throughput: f64,
    /// The fastest shape here, and its sequences per second.
    pub(super) fastest: (Bar, f64),
}

impl<'r> Tuned<'r> {
    pub(super) fn of(
        tuning: &'r Tuning,
        bar: &'r Bar,
        workload: &Workload,
        memory: f64,
        constants: &Constants,
    ) -> Result<Tuned<'r>> {
        let size = bar.size.context("the paper has a size")?;
        let throughput = workload.bar(bar, size)?.throughput(constants);
        let shapes = tuning.depths.iter().flat_map(|depth| shapes(bar, *depth, workload, memory));
        let timed = shapes.map(|(bar, job)| (bar, job.throughput(constants)));
        let fastest = timed.max_by(|a, b| a.1.total_cmp(&b.1));
        let fastest = fastest.with_context(|| format!("no shape of {} fits", bar.name))?;
        Ok(Tuned { tuning, bar, throughput, fastest })
    }
}

/// The shapes of a depth that fit into some bytes: recomputed only if they do not fit otherwise.
fn shapes(of: &Bar, depth: usize, workload: &Workload, memory: f64) -> Vec<(Bar, Job)> {
    let most = workload.batch * depth / workload.workers;
    let sizes = std::iter::successors(Some(1), |size| Some(size * 2));
    let shape = |size: usize| {
        let of_memory = |recompute| {
            let bar = Bar { depth, size: Some(size), recompute, ..of.clone() };
            let job = workload.bar(&bar, size).ok()?;
            (job.most_bytes() <= memory).then_some((bar, job))
        };
        of_memory(false).or_else(|| of_memory(true))
    };
    sizes.take_while(|size| *size <= most).filter_map(shape).collect()
}

//! Dependencies between ops, in whole units of time. They are derived independently from the token
//! rules, so that the proof shares nothing with the code under test.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use chimera_core::costs::{Costs, UniformCosts};
use chimera_core::effects::{Rules, Token, TokenKind};
use chimera_core::ids::{PipeId, StageId, WorkerId};
use chimera_core::op::{Cell, Kind, Op};
use chimera_core::timetable::Timetable;

/// An op and its duration.
pub struct Job {
    pub op: Op,
    pub worker: usize,
    /// Duration in units.
    pub takes: i64,
    /// Saved activations that it adds from its start on, in micro-batches; if negative, those it
    /// frees at its end.
    pub holds: f64,
}

/// `second` starts `lag` units after the start of `first`, or later.
pub struct Edge {
    pub first: usize,
    pub second: usize,
    pub lag: i64,
}

/// The ops of a timetable, in any order.
pub struct Problem {
    pub n_workers: usize,
    pub max_peak: f64,
    /// Length of a unit.
    pub unit: f64,
    pub jobs: Vec<Job>,
    pub edges: Vec<Edge>,
    /// Pairs whose first job need not start after the second, since every order has a mirror image.
    pub mirrored: Vec<(usize, usize)>,
}

impl Problem {
    /// The ops of `timetable` under a limit of memory.
    ///
    /// Ops of one kind, pipe and stage keep the order of their micro-batches, and nothing is lost
    /// by it. In any order of all ops, let the first forward of a stage to start be that of the
    /// first micro-batch, and so on, for each kind, pipe and stage. Workers are as busy as before
    /// and hold as much. The k-th of a stage to start still starts after the k-th of the stage
    /// before has ended: k of these have ended before k of those have started. All this needs
    /// micro-batches of equal duration, so cut micro-batches are refused.
    pub fn new(timetable: &Timetable, costs: &UniformCosts, max_peak: f64) -> Result<Problem> {
        let rules = Rules::of(timetable);
        let times = [costs.forward, costs.input, costs.weight, costs.recompute, costs.message];
        let times = [&times[..], &[costs.input + costs.weight]].concat();
        let unit = unit(&times).context("costs have no common unit")?;
        let whole = |time: f64| (time / unit).round() as i64;
        let mut jobs = Vec::new();
        for (w, row) in timetable.rows.iter().enumerate() {
            for cell in row {
                let Cell::One(op) = cell else { bail!("{cell:?} is a pair") };
                let chunks = timetable.placement.pipes()[op.pipe.index()].iter();
                let chunks = chunks.filter(|worker| worker.index() == w).count();
                jobs.push(Job {
                    op: *op,
                    worker: w,
                    takes: whole(costs.op(WorkerId(w as u16), op)),
                    holds: activations(&rules, op) / chunks as f64,
                });
            }
        }
        if timetable.units_per_micro != 1 {
            bail!("micro-batches are cut into {} units", timetable.units_per_micro);
        }
        let mut edges = token_edges(&rules, &jobs, |token| whole(costs.message(token)));
        let lanes = lanes(&jobs);
        for lane in lanes.values() {
            let after =
                |pair: &[usize]| Edge { first: pair[0], second: pair[1], lag: jobs[pair[0]].takes };
            edges.extend(lane.windows(2).map(after));
        }
        let mirrored = mirrored(timetable, &lanes);
        Ok(Problem { n_workers: timetable.rows.len(), max_peak, unit, jobs, edges, mirrored })
    }

    /// For each job, the longest path from the start of the step to its start.
    pub fn heads(&self) -> Vec<i64> {
        let mut heads = vec![0; self.jobs.len()];
        let later = |e: &Edge, heads: &[i64]| (e.second, heads[e.first] + e.lag);
        raise(&mut heads, &self.edges, later);
        heads
    }

    /// For each job, the longest path from its start to the end of the step.
    pub fn tails(&self) -> Vec<i64> {
        let mut tails: Vec<i64> = self.jobs.iter().map(|job| job.takes).collect();
        let longer = |e: &Edge, tails: &[i64]| (e.first, tails[e.second] + e.lag);
        raise(&mut tails, &self.edges, longer);
        tails
    }

    /// The order in which the jobs start at `starts`.
    pub fn timetable(&self, like: &Timetable, starts: &[i64]) -> Timetable {
        let mut by_start: Vec<usize> = (0..self.jobs.len()).collect();
        by_start.sort_by_key(|&i| starts[i]);
        let mut rows = vec![Vec::new(); self.n_workers];
        for i in by_start {
            rows[self.jobs[i].worker].push(Cell::One(self.jobs[i].op));
        }
        Timetable { schedule: "oracle".into(), rows, ..like.clone() }
    }
}

/// The longest unit such that all times are multiples of it: the longest of 1, 1/2, 1/3 … that
/// divides all times, times the common factor of the multiples.
fn unit(times: &[f64]) -> Option<f64> {
    let near = |x: f64| (x - x.round()).abs() < 1e-9;
    let parts = (1..=1000).map(f64::from).find(|k| times.iter().all(|t| near(t * k)))?;
    let common = times.iter().map(|t| (t * parts).round() as u64).fold(0, gcd);
    (common > 0).then(|| common as f64 / parts)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Raises `values` until each edge's condition holds.
fn raise(values: &mut [i64], edges: &[Edge], asks: impl Fn(&Edge, &[i64]) -> (usize, i64)) {
    let mut is_done = false;
    while !is_done {
        is_done = true;
        for edge in edges {
            let (job, least) = asks(edge, values);
            if values[job] < least {
                values[job] = least;
                is_done = false;
            }
        }
    }
}

/// Saved activations that an op adds to its worker's, in micro-batches through one stage.
fn activations(rules: &Rules, op: &Op) -> f64 {
    let effects = rules.effects(op);
    let count = |tokens: &[Token]| {
        let held = |t: &&Token| matches!(t.kind, TokenKind::Saved | TokenKind::Deferred);
        tokens.iter().filter(held).count() as f64
    };
    count(&effects.makes) - count(&effects.eats)
}

/// An edge from the op that makes each token to the op that eats it.
fn token_edges(rules: &Rules, jobs: &[Job], message: impl Fn(&Token) -> i64) -> Vec<Edge> {
    let made = |(i, job): (usize, &Job)| {
        rules.effects(&job.op).makes.into_iter().map(move |token| (token, i))
    };
    let makers: HashMap<Token, usize> = jobs.iter().enumerate().flat_map(made).collect();
    let mut edges = Vec::new();
    for (second, job) in jobs.iter().enumerate() {
        for token in rules.effects(&job.op).eats {
            let Some(&first) = makers.get(&token) else { continue };
            let is_sent = jobs[first].worker != job.worker;
            let lag = jobs[first].takes + if is_sent { message(&token) } else { 0 };
            edges.push(Edge { first, second, lag });
        }
    }
    edges
}

/// The ops of one kind, pipe and stage, by micro-batch.
type Lanes = HashMap<(Kind, PipeId, StageId), Vec<usize>>;

fn lanes(jobs: &[Job]) -> Lanes {
    let mut lanes = Lanes::new();
    for (i, Job { op, .. }) in jobs.iter().enumerate() {
        lanes.entry((op.kind, op.pipe, op.stage)).or_default().push(i);
    }
    lanes.values_mut().for_each(|lane| lane.sort_by_key(|&i| jobs[i].op.span.start));
    lanes
}

/// For each pipe that a permutation of workers and pipes maps pipe 0 to: the first forwards of pipe
/// 0 and of that pipe at their last stages.
fn mirrored(timetable: &Timetable, lanes: &Lanes) -> Vec<(usize, usize)> {
    let pipes = timetable.placement.pipes();
    let last = StageId(timetable.placement.n_stages() as u16 - 1);
    let forwards = |p: usize| lanes.get(&(Kind::Forward, PipeId(p as u16), last));
    let n_micro_batches = |p: usize| forwards(p).map_or(0, Vec::len);
    let is_image = |p: usize| {
        let image: HashMap<WorkerId, WorkerId> =
            pipes[0].iter().copied().zip(pipes[p].iter().copied()).collect();
        let is_one_to_one =
            image.iter().all(|(w, to)| image.iter().all(|(v, t)| t != to || v == w));
        is_one_to_one
            && pipes.iter().enumerate().all(|(q, pipe)| {
                let moved: Option<Vec<WorkerId>> =
                    pipe.iter().map(|w| image.get(w).copied()).collect();
                let same = pipes.iter().position(|other| Some(other) == moved.as_ref());
                same.is_some_and(|same| n_micro_batches(same) == n_micro_batches(q))
            })
    };
    let first = |p: usize| forwards(p).map(|lane| lane[0]);
    let images = (1..pipes.len()).filter(|&p| is_image(p));
    images.filter_map(|p| first(0).zip(first(p))).collect()
}

//! Periodic orders: every micro-batch runs as the one before, a period later (Qi et al., NeurIPS
//! 2024, section 3). Under a tight memory limit they are better starts than random keys.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::{Kind, Op};
use crate::order::{Graph, Keys, releases};

/// The times by which the ops of a micro-batch follow each other, in periods.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// Idle time after each forward, by segment of the pipe.
    forwards: [f64; N_SEGMENTS],
    /// Idle time after each backward, by segment of the pipe.
    backwards: [f64; N_SEGMENTS],
    /// Idle time between the last forward and the first backward.
    turn: f64,
    /// Time by which a weight half waits after its input half.
    weights: f64,
    /// Time by which a recomputation is done before its backward.
    recomputations: f64,
    /// The period, in the time that the busiest worker takes for a micro-batch.
    period: f64,
    /// Time by which an op that adds saved activations may begin before its slot.
    slack: f64,
}

/// Parts of a pipe that are passed at speeds of their own: two for each way of a V.
const N_SEGMENTS: usize = 4;

/// Idle times, in periods.
const IDLE: [f64; 9] = [0.0, 0.0, 0.0, 0.0, 1.0 / 12.0, 1.0 / 6.0, 1.0 / 3.0, 0.5, 1.0];
const DELAYS: [f64; 8] = [0.0, 0.0, 1.0 / 6.0, 1.0 / 3.0, 0.5, 1.0, 2.0, 4.0];
const PERIODS: [f64; 8] = [1.0, 1.0, 1.0, 1.02, 1.05, 1.1, 1.2, 1.5];
const EARLY: [f64; 6] = [0.0, 0.0, 0.25, 0.5, 1.0, f64::INFINITY];

fn one_of(choices: &[f64], rng: &mut ChaCha8Rng) -> f64 {
    choices[rng.random_range(0..choices.len())]
}

impl Pattern {
    /// A pattern at random. All segments are often alike.
    pub(super) fn drawn(rng: &mut ChaCha8Rng) -> Pattern {
        let mut segments = || {
            let (first, second) = (one_of(&IDLE, rng), one_of(&IDLE, rng));
            match rng.random_range(0..3) {
                0 => [first; N_SEGMENTS],
                1 => [first, first, second, second],
                _ => [first, second, one_of(&IDLE, rng), one_of(&IDLE, rng)],
            }
        };
        let (forwards, backwards) = (segments(), segments());
        Pattern {
            forwards,
            backwards,
            turn: one_of(&IDLE, rng),
            weights: one_of(&DELAYS, rng),
            recomputations: one_of(&IDLE, rng),
            period: one_of(&PERIODS, rng),
            slack: one_of(&EARLY, rng),
        }
    }

    /// The pattern with one or two of its times drawn anew.
    pub(super) fn mutated(&self, rng: &mut ChaCha8Rng) -> Pattern {
        let mut pattern = self.clone();
        for _ in 0..rng.random_range(1..=2) {
            let segment = rng.random_range(0..N_SEGMENTS);
            match rng.random_range(0..9) {
                0 | 1 => pattern.forwards[segment] = one_of(&IDLE, rng),
                2 | 3 => pattern.backwards[segment] = one_of(&IDLE, rng),
                4 => pattern.turn = one_of(&IDLE, rng),
                5 => pattern.weights = one_of(&DELAYS, rng),
                6 => pattern.recomputations = one_of(&IDLE, rng),
                7 => pattern.period *= rng.random_range(0.95..=1.05),
                _ => pattern.slack = one_of(&EARLY, rng),
            }
        }
        pattern
    }

    /// The keys of the pattern's slots.
    pub(super) fn keys(&self, graph: &Graph, ways: &Ways) -> Keys {
        let period = self.period * ways.busiest;
        let slots = self.slots(ways, period);
        let slot = |op: &Op| {
            let slots = &slots[&(op.pipe, op.stage)];
            let at = match op.kind {
                Kind::Forward => slots.forward,
                Kind::BackwardWeight => slots.backward + slots.input + self.weights * period,
                Kind::Recompute => slots.backward - slots.recompute - self.recomputations * period,
                _ => slots.backward,
            };
            let (rank, unit) = ways.rank(op);
            at + period * rank + unit * slots.input
        };
        let key = |cell: &crate::ir::op::Cell| {
            cell.ops().map(|op| slot(&op)).fold(f64::INFINITY, f64::min)
        };
        let urgency: Vec<f64> = graph.nodes.iter().map(|node| key(&node.cell)).collect();
        let releases = releases(graph, &urgency, self.slack * period);
        Keys { urgency, releases, patience: 0.0 }
    }

    /// The slots of the first micro-batch, by pipe and stage.
    fn slots(&self, ways: &Ways, period: f64) -> FxHashMap<(PipeId, StageId), StageSlots> {
        let mut all = FxHashMap::default();
        for (pipe, stages) in (0..).map(PipeId).zip(&ways.pipes) {
            let segment = |s: usize| s * N_SEGMENTS / stages.len();
            let mut slots: Vec<StageSlots> = Vec::with_capacity(stages.len());
            let mut now = 0.0;
            for (s, stage) in stages.iter().enumerate() {
                slots.push(StageSlots { forward: now, ..*stage });
                now += stage.forward + stage.lag + self.forwards[segment(s)] * period;
            }
            now += self.turn * period;
            for s in (0..stages.len()).rev() {
                slots[s].backward = now;
                now += stages[s].backward + stages[s].lag + self.backwards[segment(s)] * period;
            }
            all.extend((0..).map(StageId).zip(slots).map(|(stage, slots)| ((pipe, stage), slots)));
        }
        all
    }
}

/// Times of a stage's ops; in [`Pattern::slots`], the starts of its forward and its backward.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StageSlots {
    forward: f64,
    /// The whole backward, or its input half.
    backward: f64,
    input: f64,
    recompute: f64,
    /// Time of the longest message from the stage.
    lag: f64,
}

/// The ways of micro-batches through the pipes.
pub(super) struct Ways {
    /// By pipe: the times of each stage.
    pipes: Vec<Vec<StageSlots>>,
    /// The time that the busiest worker takes for a micro-batch.
    busiest: f64,
    /// Units of each pipe, in order.
    units: Vec<Vec<u32>>,
    units_per_micro: u32,
}

impl Ways {
    pub(super) fn of(graph: &Graph, n_pipes: usize, n_stages: usize, units: u32) -> Ways {
        let mut pipes = vec![vec![StageSlots::default(); n_stages]; n_pipes];
        let mut starts = vec![Vec::new(); n_pipes];
        let mut work = vec![0.0f64; graph.n_workers];
        for (id, node) in graph.nodes.iter().enumerate() {
            work[usize::from(node.worker)] += node.takes;
            let n_ops = node.cell.ops().count() as f64;
            for op in node.cell.ops() {
                let slots = &mut pipes[op.pipe.index()][op.stage.index()];
                let takes = node.takes / n_ops;
                match op.kind {
                    Kind::Forward => {
                        slots.forward = slots.forward.max(takes);
                        starts[op.pipe.index()].extend(op.span.units());
                    }
                    Kind::Recompute => slots.recompute = slots.recompute.max(takes),
                    Kind::Backward | Kind::BackwardInput => {
                        slots.backward = slots.backward.max(takes);
                        slots.input = slots.backward;
                    }
                    _ => {}
                }
                let lag = graph.succs(id).iter().map(|edge| edge.lag).fold(slots.lag, f64::max);
                pipes[op.pipe.index()][op.stage.index()].lag = lag;
            }
        }
        for units in &mut starts {
            units.sort_unstable();
            units.dedup();
        }
        let busiest = work.into_iter().fold(0.0, f64::max) / graph.n_micro_batches.max(1) as f64;
        Ways { pipes, busiest, units: starts, units_per_micro: units.max(1) }
    }

    /// The number of micro-batches before that of the op, where pipes take turns, and its unit.
    fn rank(&self, op: &Op) -> (f64, f64) {
        let units = &self.units[op.pipe.index()];
        let at = units.partition_point(|unit| *unit < op.span.start) as u32;
        let (micro, unit) = (at / self.units_per_micro, at % self.units_per_micro);
        ((micro as usize * self.pipes.len() + op.pipe.index()) as f64, f64::from(unit))
    }
}

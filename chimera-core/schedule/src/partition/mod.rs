//! The partition of a chain of layers into stages, by the costs of layers.
//!
//! Stages are contiguous, and each has at least one layer. The time of a step is bounded by its
//! busiest worker, so workers are balanced, not stages: on a mirrored placement (Chimera, GEMS,
//! DualPipe) and on a V stages `s` and `S-1-s` are on one worker, and only the sum of both counts.
//! [`balanced`] is exact there and where each worker holds one stage; where workers hold more
//! stages, or others, it balances the stages. A slower worker takes longer for the same layers, and
//! so gets fewer. The partition does not depend on the order of ops: [`improved`] improves it by
//! simulation.

use std::collections::BTreeMap;

use crate::ir::ids::{StageId, WorkerId};
use crate::ir::placement::Placement;

/// Number of ways to take layers that are tried before a partition is replaced by a simpler one.
const MOST_WAYS: usize = 1 << 21;

/// Relative rounding error of sums of the same layers.
const ROUNDING: f64 = 1e-9;

/// The number of layers of each stage such that the busiest worker has least to do; among such
/// partitions, one with the shortest longest stage. `None` if there are more stages than layers.
/// `speeds` are those of the workers; missing ones are 1. A stage is as fast as the slowest of its
/// replicas.
///
/// If the search takes too long, as with hundreds of layers of very different costs, stages are
/// balanced instead.
pub fn balanced(layers: &[f64], placement: &Placement, speeds: &[f64]) -> Option<Vec<usize>> {
    let workers = LayerChain::of(layers, placement, speeds)?;
    let stages = LayerChain { is_folded: false, ..workers.clone() };
    Some(workers.solved().or_else(|| stages.solved()).unwrap_or_else(|| stages.even()))
}

/// Moves layers from stage to stage as long as that makes the step shorter. `step` returns the time
/// of a step for given numbers of layers. Tries at most `n_tries` partitions.
///
/// # Errors
/// If `step` fails, with its error.
pub fn improved<E>(
    mut lens: Vec<usize>,
    n_tries: usize,
    step: &mut dyn FnMut(&[usize]) -> Result<f64, E>,
) -> Result<Vec<usize>, E> {
    let n = lens.len();
    if n_tries == 0 || n < 2 {
        return Ok(lens);
    }
    let n_moves = n * n;
    let mut shortest = step(&lens)?;
    let mut n_tried = 1;
    let mut n_in_vain = 0;
    for nth in (0..n_moves).cycle() {
        if n_in_vain == n_moves || n_tried >= n_tries {
            break;
        }
        let (from, to) = (nth / n, nth % n);
        n_in_vain += 1;
        if from == to || lens[from] < 2 {
            continue;
        }
        let mut moved = lens.clone();
        (moved[from], moved[to]) = (moved[from] - 1, moved[to] + 1);
        let took = step(&moved)?;
        n_tried += 1;
        if took < shortest * (1.0 - ROUNDING) {
            (lens, shortest, n_in_vain) = (moved, took, 0);
        }
    }
    Ok(lens)
}

/// A chain of layers that is dealt out from its ends: at every step one stage takes layers from the
/// left, and on a folded placement its mirror image as many as it likes from the right.
#[derive(Clone)]
struct LayerChain {
    /// The cost of all layers before each layer.
    sums: Vec<f64>,
    n_stages: usize,
    is_folded: bool,
    /// Number of times that the middle stage of a folded placement is on its worker.
    n_middle: f64,
    /// Speed of the slowest replica of each stage.
    speeds: Vec<f64>,
}

/// Numbers of layers that are taken from the left, and from the right.
type Taken = (usize, usize);

impl LayerChain {
    fn of(layers: &[f64], placement: &Placement, speeds: &[f64]) -> Option<LayerChain> {
        let n_stages = placement.n_stages();
        if layers.len() < n_stages {
            return None;
        }
        let mut sums = vec![0.0];
        sums.extend(layers.iter().scan(0.0, |sum, layer| {
            *sum += layer;
            Some(*sum)
        }));
        let is_folded = is_folded(placement);
        let n_middle = if placement.n_pipes() > 1 { 2.0 } else { 1.0 };
        let speed = |worker: WorkerId| speeds.get(worker.index()).copied().unwrap_or(1.0);
        let of_stage = |stage: usize| {
            let replicas = placement.replicas(StageId(stage as u16)).into_iter();
            replicas.map(speed).fold(f64::INFINITY, f64::min)
        };
        let speeds = (0..n_stages).map(of_stage).collect();
        Some(LayerChain { sums, n_stages, is_folded, n_middle, speeds })
    }

    fn n_layers(&self) -> usize {
        self.sums.len() - 1
    }

    /// Number of steps in which all layers are taken.
    fn n_steps(&self) -> usize {
        if self.is_folded { self.n_stages.div_ceil(2) } else { self.n_stages }
    }

    /// Returns true if a stage on the right takes layers in a step too.
    fn has_right(&self, step: usize) -> bool {
        self.is_folded && 2 * step + 1 != self.n_stages
    }

    /// The work that the stages of a step can do in one unit of time.
    fn capacity(&self, step: usize) -> f64 {
        if self.has_right(step) {
            self.speeds[step].max(self.speeds[self.n_stages - 1 - step])
        } else {
            self.speeds[step]
        }
    }

    /// The best partition, unless the search takes too long.
    fn solved(&self) -> Option<Vec<usize>> {
        let longest = self.sums.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
        let fastest = self.speeds.iter().copied().fold(0.0, f64::max);
        let capacity: f64 = (0..self.n_steps()).map(|step| self.capacity(step)).sum();
        let least = (longest / fastest).max(self.sums[self.n_layers()] / capacity);
        let most = self.busiest(&self.even());
        let together = |own: f64, mirrored: f64| own + mirrored;
        // The tighter the bound, the fewer ways lie within it.
        let mut slack = 0.01;
        let busiest = loop {
            let bound = most.min(least * (1.0 + slack)) * (1.0 + ROUNDING);
            match self.least(bound, together)? {
                Some((busiest, _)) => break busiest,
                None if bound >= most => return None,
                None => slack *= 2.0,
            }
        };
        // Sums are computed in another order.
        let longest = self.least(busiest * (1.0 + ROUNDING), f64::max)?;
        longest.map(|(_, lens)| lens)
    }

    /// Layer counts that are equal up to one.
    fn even(&self) -> Vec<usize> {
        let n = self.n_layers();
        let stages = self.n_stages;
        (0..stages).map(|stage| (stage + 1) * n / stages - stage * n / stages).collect()
    }

    /// The cost of the busiest worker.
    fn busiest(&self, lens: &[usize]) -> f64 {
        let mut taken = (0, 0);
        let mut busiest = 0.0f64;
        for step in 0..self.n_steps() {
            let right = if self.has_right(step) { lens[self.n_stages - 1 - step] } else { 0 };
            let (own, mirrored) = self.costs(step, taken, (lens[step], right));
            taken = (taken.0 + lens[step], taken.1 + right);
            busiest = busiest.max(own + mirrored);
        }
        busiest
    }

    /// The costs on the left and on the right of a step's worker that takes `left` and `right`
    /// layers after the ones in `taken`.
    fn costs(&self, step: usize, taken: Taken, (left, right): Taken) -> (f64, f64) {
        let end = self.n_layers() - taken.1;
        let own = (self.sums[taken.0 + left] - self.sums[taken.0]) / self.speeds[step];
        if self.has_right(step) {
            let mirrored = self.sums[end] - self.sums[end - right];
            (own, mirrored / self.speeds[self.n_stages - 1 - step])
        } else if self.is_folded {
            (own, own * (self.n_middle - 1.0))
        } else {
            (own, 0.0)
        }
    }

    /// The smallest possible maximum of a step's `cost`, if no worker has more to do than `bound`,
    /// with the layers of the stages. `Some(None)` if that is impossible, `None` if it takes too
    /// long. Uses dynamic programming over the layers that are taken after each step.
    fn least(
        &self,
        bound: f64,
        cost: impl Fn(f64, f64) -> f64,
    ) -> Option<Option<(f64, Vec<usize>)>> {
        let mut n_ways = 0;
        let mut reached: Vec<BTreeMap<Taken, (f64, Taken)>> =
            vec![BTreeMap::from([((0, 0), (0.0, (0, 0)))])];
        for step in 0..self.n_steps() {
            let mut next = BTreeMap::new();
            for (&before, &(most, _)) in reached.last()? {
                if n_ways > MOST_WAYS {
                    return None;
                }
                self.each_next(step, before, bound, |after, (own, mirrored)| {
                    n_ways += 1;
                    let most = most.max(cost(own, mirrored));
                    let known = next.entry(after).or_insert((f64::INFINITY, before));
                    if most < known.0 {
                        *known = (most, before);
                    }
                });
            }
            reached.push(next);
        }
        let best = reached.last()?.iter().min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let Some((&(mut after), &(most, _))) = best else { return Some(None) };
        let mut lens = vec![0; self.n_stages];
        for step in (0..self.n_steps()).rev() {
            let (_, before) = reached[step + 1][&after];
            lens[step] = after.0 - before.0;
            if self.has_right(step) {
                lens[self.n_stages - 1 - step] = after.1 - before.1;
            }
            after = before;
        }
        Some(Some((most, lens)))
    }

    /// Visits every way to take layers in a step that leaves enough for the later stages, and no
    /// more than they may have.
    fn each_next(
        &self,
        step: usize,
        before: Taken,
        bound: f64,
        mut visit: impl FnMut(Taken, (f64, f64)),
    ) {
        let n_steps_behind = self.n_steps() - step - 1;
        let has_right = self.has_right(step);
        let capacity_behind: f64 = (step + 1..self.n_steps()).map(|step| self.capacity(step)).sum();
        let n_behind = if self.is_folded {
            self.n_stages.saturating_sub(2 * (step + 1))
        } else {
            n_steps_behind
        };
        // Layers that this step may take.
        let most = self.n_layers() - before.0 - before.1 - n_behind;
        for left in 1..=most - usize::from(has_right) {
            let rights = match (has_right, n_behind) {
                (false, 0) if left < most => continue,
                (false, _) => 0..=0,
                (true, 0) => most - left..=most - left,
                (true, _) => 1..=most - left,
            };
            for right in rights {
                let (own, mirrored) = self.costs(step, before, (left, right));
                if own + mirrored > bound {
                    break;
                }
                let after = (before.0 + left, before.1 + right);
                let rest = self.sums[self.n_layers() - after.1] - self.sums[after.0];
                if rest <= bound * capacity_behind * (1.0 + ROUNDING) {
                    visit(after, (own, mirrored));
                }
            }
        }
    }
}

/// Returns true if each worker holds a stage and its mirror image, and no other.
fn is_folded(placement: &Placement) -> bool {
    let n = placement.n_stages();
    let n_workers = placement.n_workers() as u16;
    let is_pair = |worker| match placement.stages_of(WorkerId(worker))[..] {
        [middle] => 2 * middle.index() + 1 == n,
        [one, other] => one.index() + other.index() + 1 == n,
        _ => false,
    };
    n > 1 && (0..n_workers).all(is_pair)
}

#[cfg(test)]
mod tests;

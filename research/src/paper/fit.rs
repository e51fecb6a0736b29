//! Fits a machine's constants to some of its bars, by least squares of relative errors.

use chimera_core::analyze::Link;

use super::job::{Constants, Job};

/// Operations per second, latency in seconds and bytes per second at which the fit starts.
const BEGIN: [f64; 3] = [5e12, 5e-3, 5e9];
/// Size of the first simplex, as a difference of logarithms.
const STRIDE: f64 = 0.3;
const MOST_STEPS: usize = 200;
/// The fit ends when no corner of the simplex improves by more.
const ENOUGH: f64 = 1e-9;

/// The constants that bring the jobs closest to the throughputs read from the figures. A product of
/// `half` operations reaches half of the rate, which may be held.
pub(super) fn fit(bars: &[(Job, f64)], half: f64, rate: Option<f64>) -> Constants {
    let of = |logarithms: &Point| {
        let constants = of(logarithms, half);
        Constants { flops: rate.unwrap_or(constants.flops), ..constants }
    };
    let error = |logarithms: &Point| {
        let constants = of(logarithms);
        let squared = |(job, read): &(Job, f64)| (job.throughput(&constants) / read).ln().powi(2);
        bars.iter().map(squared).sum()
    };
    of(&least(BEGIN.map(f64::ln), error))
}

/// Constants by their logarithms.
type Point = [f64; 3];

fn of(logarithms: &Point, half: f64) -> Constants {
    let [flops, alpha, bytes_per_s] = logarithms.map(f64::exp);
    Constants { flops, half, link: Link { alpha, beta: 1.0 / bytes_per_s }, share: 0.0 }
}

/// Returns the point near `begin` with the least `error`, by the simplex method of Nelder and Mead (1965).
fn least(begin: Point, error: impl Fn(&Point) -> f64) -> Point {
    let at = |point: Point| (error(&point), point);
    let mut simplex = vec![at(begin)];
    for axis in 0..begin.len() {
        let mut corner = begin;
        corner[axis] += STRIDE;
        simplex.push(at(corner));
    }
    for _ in 0..MOST_STEPS {
        simplex.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [first, .., second_worst, worst] = simplex[..] else { break };
        if worst.0 - first.0 < ENOUGH {
            break;
        }
        let others = &simplex[..begin.len()];
        let centre: Point = std::array::from_fn(|axis| {
            others.iter().map(|(_, corner)| corner[axis]).sum::<f64>() / others.len() as f64
        });
        // The point beyond the centre, at this multiple of the distance from the worst corner.
        let beyond = |part: f64| {
            at(std::array::from_fn(|axis| centre[axis] + part * (centre[axis] - worst.1[axis])))
        };
        let mirrored = beyond(1.0);
        let better = if mirrored.0 < first.0 {
            let further = beyond(2.0);
            if further.0 < mirrored.0 { further } else { mirrored }
        } else if mirrored.0 < second_worst.0 {
            mirrored
        } else {
            beyond(-0.5)
        };
        if better.0 < worst.0 {
            simplex[begin.len()] = better;
            continue;
        }
        for corner in &mut simplex[1..] {
            *corner = at(std::array::from_fn(|axis| (corner.1[axis] + first.1[axis]) / 2.0));
        }
    }
    simplex.sort_by(|a, b| a.0.total_cmp(&b.0));
    simplex[0].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_a_bent_valley_is_found() {
        let valley =
            |[x, y, z]: &Point| (1.0 - x).powi(2) + 10.0 * (y - x * x).powi(2) + (z + 2.0).powi(2);
        let found = least([0.0, 0.0, 0.0], valley);
        for (one, other) in found.iter().zip([1.0, 1.0, -2.0]) {
            assert!((one - other).abs() < 1e-3, "{found:?}");
        }
    }
}

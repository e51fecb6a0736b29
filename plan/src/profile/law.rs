//! Interpolation between measured points.
//!
//! A positive figure, such as the seconds of a unit of work, is interpolated in the logarithms of sizes and of
//! the figure itself, by a constant and radial basis functions that grow with distance. The result is exact at
//! each point. Along a line of points it is straight between neighbours, and constant beyond the last.

use std::collections::BTreeMap;

/// A figure as a function of extents.
#[derive(Clone, Debug)]
pub(super) struct Law {
    points: Vec<Vec<f64>>,
    weights: Vec<f64>,
    constant: f64,
}

impl Law {
    /// Fits points with equally many extents and a positive figure each. If several points have the
    /// same extents, their median counts. Returns `None` if there is no point.
    pub(super) fn through(points: impl IntoIterator<Item = (Vec<usize>, f64)>) -> Option<Law> {
        let mut places: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
        for (extents, figure) in points {
            places.entry(extents).or_default().push(figure.ln());
        }
        let values: Vec<f64> = places.values_mut().map(|figures| median(figures)).collect();
        let points: Vec<Vec<f64>> = places.keys().map(|extents| coordinates(extents)).collect();
        let n = points.len();
        if n == 0 {
            return None;
        }
        // The distances of all points from each, and ones for the constant; the last row makes the weights sum to zero.
        let mut rows: Vec<Vec<f64>> = (points.iter().zip(&values))
            .map(|(point, value)| {
                let distances = points.iter().map(|other| distance(point, other));
                distances.chain([1.0, *value]).collect()
            })
            .collect();
        rows.push([vec![1.0; n], vec![0.0, 0.0]].concat());
        let mut weights = solved(rows);
        let constant = weights.pop().unwrap_or(0.0);
        Some(Law { points, weights, constant })
    }

    /// Returns the figure at some extents.
    pub(super) fn at(&self, extents: &[usize]) -> f64 {
        let place = coordinates(extents);
        let terms = self.points.iter().zip(&self.weights);
        let sum: f64 = terms.map(|(point, weight)| weight * distance(point, &place)).sum();
        (sum + self.constant).exp()
    }
}

/// Sorts some figures and returns their median; 0 if there are none.
pub(super) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    let (n, at) = (figures.len(), |i: usize| figures.get(i).copied().unwrap_or(0.0));
    0.5 * (at(n.saturating_sub(1) / 2) + at(n / 2))
}

/// Returns the median, and half of the distance between the quartiles relative to it; `None` without times.
pub(super) fn middle(times: &mut [f64]) -> Option<(f64, f64)> {
    let seconds = median(times).max(1e-9);
    Some((seconds, half_range(times)? / seconds))
}

/// Returns the usual time of a call among many, and half of the distance between the quartiles relative
/// to it; `None` without times. The usual time is the mean of those that took at most twice the median:
/// a step includes most of the frequent delays of calls, and hardly ever a stop of the whole machine.
pub(super) fn usual(times: &mut [f64]) -> Option<(f64, f64)> {
    let longest = 2.0 * median(times);
    let n = times.partition_point(|time| *time <= longest).max(1);
    let seconds = (times.iter().take(n).sum::<f64>() / n as f64).max(1e-9);
    Some((seconds, half_range(times)? / seconds))
}

/// Returns half of the distance between the quartiles of sorted times.
fn half_range(times: &[f64]) -> Option<f64> {
    let last = times.len().checked_sub(1)?;
    let quartile = |of: usize| times[(times.len() * of / 4).min(last)];
    Some(0.5 * (quartile(3) - quartile(1)))
}

fn coordinates(extents: &[usize]) -> Vec<f64> {
    extents.iter().map(|extent| (*extent).max(1) as f64).map(f64::ln).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

/// Solves linear equations by elimination with pivots; each row ends with its right side.
fn solved(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let n = rows.len();
    for column in 0..n {
        let largest =
            |a: &usize, b: &usize| rows[*a][column].abs().total_cmp(&rows[*b][column].abs());
        let pivot = (column..n).max_by(largest).unwrap_or(column);
        rows.swap(column, pivot);
        let (above, below) = rows.split_at_mut(column + 1);
        let row = &above[column];
        for other in below.iter_mut().filter(|other| other[column] != 0.0) {
            let factor = other[column] / row[column];
            other.iter_mut().zip(row).skip(column).for_each(|(x, y)| *x -= factor * y);
        }
    }
    let mut solution = vec![0.0; n];
    for (at, row) in rows.iter().enumerate().rev() {
        let known: f64 = row[at + 1..n].iter().zip(&solution[at + 1..]).map(|(a, x)| a * x).sum();
        solution[at] = (row[n] - known) / row[at];
    }
    solution
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9 * b.abs(), "{a} is not {b}");
    }

    #[test]
    fn a_law_is_exact_at_its_points() {
        let points: Vec<(Vec<usize>, f64)> = (0..60)
            .map(|i| (vec![1 << (i % 5), 3 + i / 5, 7 * (i % 3) + 1], 1.0 + (i * i % 17) as f64))
            .collect();
        let law = Law::through(points.clone()).expect("points");
        points.iter().for_each(|(extents, figure)| near(law.at(extents), *figure));
        let twice = Law::through([(vec![2], 3.0), (vec![2], 3.0)]).expect("points");
        near(twice.at(&[2]), 3.0);
        assert!(Law::through([]).is_none());
    }

    #[test]
    fn of_no_times_nothing_is_the_middle() {
        assert_eq!(middle(&mut []), None);
        assert_eq!(middle(&mut [2.0]), Some((2.0, 0.0)));
        assert_eq!(middle(&mut [4.0, 1.0, 3.0, 2.0]), Some((2.5, 0.4)));
    }

    #[test]
    fn a_long_call_counts_and_one_that_was_stopped_does_not() {
        assert_eq!(usual(&mut []), None);
        assert_eq!(usual(&mut [2.0]), Some((2.0, 0.0)));
        assert_eq!(usual(&mut [9.0, 2.0, 4.0, 2.0, 2.0]), Some((2.5, 0.4)));
    }

    /// Time is work times the figure: it grows with size wherever it grows from point to point.
    #[test]
    fn along_a_line_a_law_is_straight_and_flat_at_its_ends() {
        let law =
            Law::through([(vec![16], 8.0), (vec![64], 4.0), (vec![256], 1.0)]).expect("points");
        near(law.at(&[32]), 32f64.sqrt());
        near(law.at(&[128]), 2.0);
        near(law.at(&[1]), 8.0);
        near(law.at(&[1 << 20]), 1.0);
        let times: Vec<f64> = (1..400).map(|n| n as f64 * law.at(&[n])).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 1e-12)));
    }
}

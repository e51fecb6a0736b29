//! Inverses of symmetric positive definite matrices by Cholesky decomposition, row-major in f64.

/// Inverts the matrix with lower triangle `a` `[n, n]`; `None` if not positive definite.
pub(super) fn inverse(mut a: Vec<f64>, n: usize) -> Option<Vec<f64>> {
    decompose(&mut a, n)?;
    let upper = inverted_factor(&a, n);
    let mut inverse = a;
    for i in 0..n {
        for j in 0..=i {
            let sum = dot(&upper[i * n..][i..n], &upper[j * n..][i..n]);
            inverse[i * n + j] = sum;
            inverse[j * n + i] = sum;
        }
    }
    Some(inverse)
}

/// Writes `L` with `L Lᵀ = a` into the lower triangle.
fn decompose(a: &mut [f64], n: usize) -> Option<()> {
    for i in 0..n {
        let (above, rest) = a.split_at_mut(i * n);
        let row = &mut rest[..n];
        for j in 0..i {
            let of_j = &above[j * n..][..=j];
            row[j] = (row[j] - dot(&row[..j], &of_j[..j])) / of_j[j];
        }
        let square = row[i] - dot(&row[..i], &row[..i]);
        if !(square.is_finite() && square > 0.0) {
            return None;
        }
        row[i] = square.sqrt();
    }
    Some(())
}

/// Returns the transpose of the inverse of `L`, an upper triangle.
fn inverted_factor(l: &[f64], n: usize) -> Vec<f64> {
    let mut upper = vec![0.0; n * n];
    for (j, row) in upper.chunks_exact_mut(n.max(1)).enumerate() {
        row[j] = 1.0 / l[j * n + j];
        for i in j + 1..n {
            row[i] = -dot(&l[i * n..][j..i], &row[j..i]) / l[i * n + i];
        }
    }
    upper
}

/// Dot product in eight partial sums, so that the loop vectorizes.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a_eights, a_rest) = a.as_chunks::<8>();
    let (b_eights, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a_eights.iter().zip(b_eights) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{Init, Param, initial};

    #[test]
    fn a_matrix_times_its_inverse_is_one() {
        for n in [1, 2, 7, 8, 40] {
            let x = initial(&Param::new("x", [n, n], Init::Normal(1.0)), 3);
            let x: Vec<f64> = x.into_iter().map(f64::from).collect();
            let entry = |i: usize, j: usize| {
                let product = dot(&x[i * n..][..n], &x[j * n..][..n]);
                product + if i == j { 0.1 } else { 0.0 }
            };
            let a: Vec<f64> = (0..n * n).map(|at| entry(at / n, at % n)).collect();
            let inverse = inverse(a.clone(), n).unwrap();
            for i in 0..n {
                for j in 0..n {
                    let one = dot(&a[i * n..][..n], &inverse[j * n..][..n]);
                    assert!((one - f64::from(i == j)).abs() < 1e-9, "{n}: {one} at {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_positive_definite_has_none() {
        assert_eq!(inverse(vec![1.0, 2.0, 2.0, 1.0], 2), None);
        assert_eq!(inverse(vec![f64::NAN], 1), None);
        assert_eq!(inverse(Vec::new(), 0), Some(Vec::new()));
    }
}

//! Newton–Schulz iterations, which optimizers need. Only the lower half of symmetric products is
//! computed.

use candle_core::{Device, Result, Tensor};

use super::Operands;
use super::memory::values;
use super::products::matmul::matmul;
use super::products::matrix::Matrix;

/// Rows of a symmetric product that are multiplied together. Their blocks reach over the diagonal,
/// so fewer rows mean fewer operations, but slower products.
const ROWS: usize = 64;

/// Returns `x` `[m, n]` after some iterations.
pub(crate) fn iterated(x: &Tensor, coefficients: [f64; 3], n_iterations: usize) -> Result<Tensor> {
    let (m, n) = x.dims2()?;
    let [a, b, c] = coefficients.map(|x| x as f32);
    let mut x = values(x)?.to_vec();
    let (mut square, mut sum, mut next) = (vec![0.0; m * m], vec![0.0; m * m], vec![0.0; m * n]);
    for _ in 0..n_iterations {
        symmetric(&mut square, 1.0, &x, m, n);
        symmetric(&mut sum, c, &square, m, m);
        sum.iter_mut().zip(&square).for_each(|(sum, x)| *sum += b * x);
        next.iter_mut().zip(&x).for_each(|(next, x)| *next = a * x);
        let (by, from) = (Matrix::new(&sum, m, m, m), Matrix::new(&x, m, n, n));
        // SAFETY: `next` is as large as the product, initialised and borrowed mutably.
        unsafe { matmul(Operands::F32, next.as_mut_ptr(), n, true, 1.0, by, from) };
        std::mem::swap(&mut x, &mut next);
    }
    Tensor::from_vec(x, (m, n), &Device::Cpu)
}

/// Writes `scale x xᵀ` of a matrix `[m, n]`.
fn symmetric(into: &mut [f32], scale: f32, x: &[f32], m: usize, n: usize) {
    assert_eq!(into.len(), m * m);
    for top in (0..m).step_by(ROWS) {
        let end = m.min(top + ROWS);
        let rows = Matrix::new(&x[top * n..], end - top, n, n);
        let columns = Matrix::new(x, end, n, n).t();
        let at = into[top * m..].as_mut_ptr();
        // SAFETY: `into` has these rows, which are borrowed mutably and longer than the product's.
        unsafe { matmul(Operands::F32, at, m, false, scale, rows, columns) };
    }
    for top in (0..m).step_by(ROWS) {
        for row in top..m.min(top + ROWS) {
            for column in m.min(top + ROWS)..m {
                into[row * m + column] = into[column * m + row];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rayon::ThreadPoolBuilder;

    use super::*;

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        for (m, n) in [(64, 64), (130, 300), (256, 1024)] {
            let number = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) * 1e-5;
            let x = (0..m * n).map(number).collect::<Vec<_>>();
            let x = Tensor::from_vec(x, (m, n), &Device::Cpu).expect("a tensor");
            let with = |threads| {
                let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                let got = pool.install(|| iterated(&x, [3.4445, -4.775, 2.0315], 5));
                let got = got.and_then(|x| x.flatten_all()?.to_vec1::<f32>()).expect("a matrix");
                got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone = with(1);
            for threads in [2, 3, 5] {
                assert!(with(threads) == alone, "{m} x {n}, {threads} threads");
            }
        }
    }
}

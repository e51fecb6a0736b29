//! The tensor of the reference device, and three loops over slices.

/// A row-major tensor. Clones are deep, and `rows` copies.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The extent of each dimension.
    pub shape: Vec<usize>,
    /// The elements; their number is the product of the extents.
    pub data: Vec<f64>,
}

impl Tensor {
    /// A tensor of this shape and these elements.
    ///
    /// # Panics
    /// If their number is not the product of the extents.
    pub fn new(shape: &[usize], data: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of {shape:?}");
        Tensor { shape: shape.to_vec(), data }
    }

    /// A tensor of zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Tensor::new(shape, vec![0.0; shape.iter().product()])
    }

    /// Extent of the first dimension.
    pub fn n_rows(&self) -> usize {
        self.shape[0]
    }

    /// Elements per index of the first dimension.
    pub fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The transpose of a matrix.
    pub fn transposed(&self) -> Tensor {
        let (rows, columns) = (self.n_rows(), self.width());
        let mut data = vec![0.0; self.data.len()];
        for (n, row) in self.data.chunks_exact(columns.max(1)).enumerate() {
            for (value, x) in data[n..].iter_mut().step_by(rows).zip(row) {
                *value = *x;
            }
        }
        Tensor::new(&[columns, rows], data)
    }

    /// Row `r`.
    pub fn row(&self, r: usize) -> &[f64] {
        &self.data[r * self.width()..][..self.width()]
    }

    /// Row `r`.
    pub fn row_mut(&mut self, r: usize) -> &mut [f64] {
        let width = self.width();
        &mut self.data[r * width..][..width]
    }

    pub(crate) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Tensor::new(&self.shape, self.data.iter().map(|&x| f(x)).collect())
    }
}

/// `log Σ exp x`, shifted by the maximum so that nothing overflows.
pub(crate) fn log_sum_exp(x: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = x.clone().fold(f64::NEG_INFINITY, f64::max);
    max + x.map(|x| (x - max).exp()).sum::<f64>().ln()
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "dot");
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `into += factor x`
pub(crate) fn add(into: &mut [f64], factor: f64, x: &[f64]) {
    assert_eq!(into.len(), x.len(), "add");
    for (into, x) in into.iter_mut().zip(x) {
        *into += factor * x;
    }
}

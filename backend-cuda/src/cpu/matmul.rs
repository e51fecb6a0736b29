//! Matrix products by the `gemm` crate: any strides, added to what is there or not.

pub(super) use gemm::Parallelism;

/// A matrix in memory, read by steps; so transposes, heads and row ranges need no copy.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a> Matrix<'a> {
    /// The `rows x columns` block at the start of `data`, whose rows lie `row_step` apart.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, row_step: usize) -> Self {
        let last = (rows.max(1) - 1) * row_step + columns;
        assert!(last <= data.len(), "matrix ends outside of its memory");
        Self { data, rows, columns, row_step, column_step: 1 }
    }

    /// The transpose.
    pub(super) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_step: self.column_step,
            column_step: self.row_step,
            ..self
        }
    }
}

/// All threads of the current pool.
pub(super) fn all_threads() -> Parallelism {
    match rayon::current_num_threads() {
        1 => Parallelism::None,
        n => Parallelism::Rayon(n),
    }
}

/// Writes `scale a b` to `into`, a row-major matrix whose rows lie `row_step` apart, or adds it to
/// what `into` holds.
///
/// # Safety
///
/// `into` is valid for writing `a.rows x b.columns` elements, which nobody else touches meanwhile;
/// they are initialised if `add` is set.
pub(super) unsafe fn matmul(
    into: *mut f32,
    row_step: usize,
    add: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
    parallelism: Parallelism,
) {
    assert_eq!(a.columns, b.rows);
    // SAFETY: both operands end inside of their slices, and `into` is the caller's promise.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            into,
            1,
            row_step as isize,
            add,
            a.data.as_ptr(),
            a.column_step as isize,
            a.row_step as isize,
            b.data.as_ptr(),
            b.column_step as isize,
            b.row_step as isize,
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

//! Plans of cuBLASLt for products of one shape: matrix layouts, and its heuristic's algorithm.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::super::{Element, Plus, Product};

/// Scratch memory of cuBLAS, as its manual advises for Hopper. It belongs to one stream, so the
/// same product always gives the same bits, independent of other streams.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// An alignment beyond which algorithms do not differ.
const MOST_ALIGNED: usize = 256;

/// A product for the library, which is column-major, so it computes the transpose, `bᵀ aᵀ`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// Whether the product transposes `b` and `a`.
    transposed: [bool; 2],
    /// The product's m, n and k.
    sizes: [usize; 3],
    /// Distances between columns of `b`, `a`, the added matrix and the result.
    strides: [usize; 4],
    /// Element types of `b`, `a`, the added matrix and the result.
    elements: [Element; 4],
    /// Alignments of the same four matrices in bytes.
    aligned: [u32; 4],
    /// Whether a matrix is added.
    pub(super) adds: bool,
    has_bias: bool,
}

impl Shape {
    /// The addresses are those of `b`, `a`, the added matrix and the result.
    pub(super) fn of<M>(product: &Product<'_, M>, addresses: [*const c_void; 4]) -> Self {
        let Product { m, n, k, ref a, ref b, ref into, ref plus, ref bias } = *product;
        let matrices = [&b.place, &a.place, product.added(), into];
        Self {
            transposed: [b.transposed, a.transposed],
            sizes: [n, m, k],
            strides: matrices.map(|matrix| matrix.pitch),
            elements: matrices.map(|matrix| matrix.element),
            aligned: addresses.map(|at| 1 << (at as usize | MOST_ALIGNED).trailing_zeros()),
            adds: !matches!(plus, Plus::Nothing),
            has_bias: bias.is_some(),
        }
    }

    /// Returns rows and columns in memory of `b`, `a`, the added matrix and the result.
    fn extents(&self) -> [[usize; 2]; 4] {
        let [m, n, k] = self.sizes;
        let turned = |is_transposed, [rows, columns]: [usize; 2]| {
            if is_transposed { [columns, rows] } else { [rows, columns] }
        };
        [turned(self.transposed[0], [m, k]), turned(self.transposed[1], [k, n]), [m, n], [m, n]]
    }
}

/// Descriptions that the library reads, for products of one shape.
pub(super) struct Plan {
    pub(super) product: sys::cublasLtMatmulDesc_t,
    /// Layouts of `b`, `a`, the added matrix and the result.
    pub(super) matrices: [sys::cublasLtMatrixLayout_t; 4],
    pub(super) algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Plan {
    /// Makes a plan for products of this shape; the library looks at the `bias` of one of them.
    pub(super) fn new(
        handle: sys::cublasLtHandle_t,
        compute: sys::cublasComputeType_t,
        shape: &Shape,
        bias: Option<*const c_void>,
    ) -> Result<Self, CublasError> {
        use sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let product = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?;
        let mut plan = Self {
            product,
            matrices: [ptr::null_mut(); 4],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        let sides =
            [Attribute::CUBLASLT_MATMUL_DESC_TRANSA, Attribute::CUBLASLT_MATMUL_DESC_TRANSB];
        for (side, is_transposed) in sides.into_iter().zip(shape.transposed) {
            plan.set(side, &i32::from(is_transposed))?; // CUBLAS_OP_N, CUBLAS_OP_T
        }
        if let Some(bias) = bias {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &CUBLASLT_EPILOGUE_BIAS)?;
            plan.set_bias(bias)?;
        }
        let described = shape.elements.into_iter().zip(shape.extents()).zip(shape.strides);
        for (matrix, ((element, [rows, columns]), stride)) in
            plan.matrices.iter_mut().zip(described)
        {
            let (rows, columns) = (rows as u64, columns as u64);
            *matrix = result::create_matrix_layout(of(element), rows, columns, stride as i64)?;
        }
        let preference = Preference::new(&shape.aligned)?;
        let [a, b, c, d] = plan.matrices;
        // SAFETY: all of them were made just now.
        let found =
            unsafe { result::get_matmul_algo_heuristic(handle, product, a, b, c, d, preference.0) };
        plan.algorithm = found?.algo;
        Ok(plan)
    }

    /// Sets the bias that is added to all columns of the library's result, which has as many rows.
    pub(super) fn set_bias(&mut self, bias: *const c_void) -> Result<(), CublasError> {
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)
    }

    fn set<T>(
        &mut self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        let value: *const T = value;
        // SAFETY: the description is alive, and each attribute is set with its own type.
        unsafe {
            result::set_matmul_desc_attribute(self.product, attribute, value.cast(), size_of::<T>())
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        for matrix in self.matrices.into_iter().filter(|matrix| !matrix.is_null()) {
            // SAFETY: made by `new`, and destroyed once.
            let freed = unsafe { result::destroy_matrix_layout(matrix) };
            let _ = freed; // nothing of the device is lost with it
        }
        // SAFETY: as above.
        let freed = unsafe { result::destroy_matmul_desc(self.product) };
        let _ = freed;
    }
}

/// Limits on the algorithms.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(aligned: &[u32; 4]) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        use sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        let preference = Self(result::create_matmul_pref()?);
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES)?;
        // Parts of a sum are added in f32, for any type of the result.
        let scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme)?;
        let sides = [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (side, aligned) in sides.into_iter().zip(aligned) {
            preference.set(side, aligned)?;
        }
        Ok(preference)
    }

    fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        let value: *const T = value;
        // SAFETY: it is alive, and each attribute is set with its own type.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, value.cast(), size_of::<T>())
        }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed once.
        let freed = unsafe { result::destroy_matmul_pref(self.0) };
        let _ = freed; // nothing of the device is lost with it
    }
}

fn of(element: Element) -> sys::cudaDataType {
    match element {
        Element::F32 => sys::cudaDataType::CUDA_R_32F,
        Element::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{MatrixRef, Operand};
    use super::*;

    /// Computes `op(a) op(b)` as BLAS defines it, column by column.
    fn gemm(by: &Shape, a: &[f64], b: &[f64]) -> Vec<f64> {
        let [m, n, k] = by.sizes;
        let at = |x: &[f64], which: usize, row: usize, column: usize| {
            let (row, column) = if by.transposed[which] { (column, row) } else { (row, column) };
            let [rows, columns] = by.extents()[which];
            assert!(row < rows && column < columns && rows <= by.strides[which], "outside");
            x[row + column * by.strides[which]]
        };
        let stride = by.strides[3];
        let mut c = vec![0.0; stride * n];
        for j in 0..n {
            for i in 0..m {
                let each = (0..k).map(|l| at(a, 0, i, l) * at(b, 1, l, j));
                c[i + j * stride] = each.sum();
            }
        }
        c
    }

    #[test]
    fn the_library_computes_what_is_asked() {
        let (m, n, k) = (2, 3, 4);
        let matrix = |len: usize| (0..len).map(|i| (i * i % 7) as f64).collect::<Vec<_>>();
        for transposed in [(false, false), (false, true), (true, false), (true, true)] {
            // The rows in memory have gaps of one, two and three elements.
            let [a_pitch, b_pitch, pitch] =
                [1 + if transposed.0 { m } else { k }, 2 + if transposed.1 { k } else { n }, 3 + n];
            let (a, b) = (matrix((m + k) * a_pitch), matrix((k + n) * b_pitch));
            let place = |pitch| MatrixRef { memory: &(), start: 0, element: Element::F32, pitch };
            let product = Product {
                m,
                n,
                k,
                a: Operand { place: place(a_pitch), transposed: transposed.0 },
                b: Operand { place: place(b_pitch), transposed: transposed.1 },
                into: place(pitch),
                plus: Plus::Nothing,
                bias: None,
            };
            let row_major = |i, l, pitch: usize, is_transposed: bool| {
                if is_transposed { l * pitch + i } else { i * pitch + l }
            };
            let mut expected = vec![0.0; pitch * m];
            for i in 0..m {
                for j in 0..n {
                    for l in 0..k {
                        expected[i * pitch + j] += a[row_major(i, l, a_pitch, transposed.0)]
                            * b[row_major(l, j, b_pitch, transposed.1)];
                    }
                }
            }
            let shape = Shape::of(&product, [ptr::null(); 4]);
            assert_eq!(gemm(&shape, &b, &a), expected, "{transposed:?}");
        }
    }
}

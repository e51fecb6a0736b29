//! Matrix products by cuBLAS.

use std::ffi::c_void;

use cudarc::cublas::result::CublasError;
use cudarc::cublas::{result, sys};
use cudarc::driver::result::{DriverError, malloc_sync, memory_free};

use super::super::{Element, MatrixRef, Product};
use super::libraries::CUBLAS;
use super::memory::{Memory, Stream};

/// Scratch memory of cuBLAS, as its manual advises for Hopper. Its own, so that the same product always
/// gives the same bits, whatever other streams do.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A handle of the library, for one stream.
pub(super) struct Blas {
    handle: sys::cublasHandle_t,
    workspace: u64,
}

// SAFETY: a handle may be used by any thread, one at a time.
unsafe impl Send for Blas {}

/// The library's version.
pub(super) fn version() -> Result<String, String> {
    use sys::libraryPropertyType_t as Property;
    CUBLAS.require()?;
    let read = |property| {
        let mut value = 0;
        // SAFETY: it writes an int.
        let done = unsafe { sys::cublasGetProperty(property, &raw mut value) };
        done.result().map(|()| value).map_err(|e| format!("{e:?}"))
    };
    let [major, minor] = [read(Property::MAJOR_VERSION)?, read(Property::MINOR_VERSION)?];
    let version = format!("{major}.{minor}.{}", read(Property::PATCH_LEVEL)?);
    CUBLAS.check(major, &version)?;
    Ok(version)
}

impl Blas {
    pub(super) fn new(stream: &Stream) -> Result<Self, String> {
        version()?;
        let said = |e: CublasError| format!("{e:?}");
        let driver_said = |e: DriverError| super::said(&e);
        let handle = result::create_handle().map_err(said)?;
        // SAFETY: the handle was made just now; the stream outlives it, and so does the workspace.
        unsafe {
            result::set_stream(handle, stream.0.cu_stream().cast()).map_err(said)?;
            let workspace = malloc_sync(WORKSPACE_BYTES).map_err(driver_said)?;
            let blas = Self { handle, workspace };
            let at = workspace as *mut c_void;
            sys::cublasSetWorkspace_v2(handle, at, WORKSPACE_BYTES).result().map_err(said)?;
            // f32 stays f32 (no TF32), and sums of bf16 products are f32 throughout.
            let math = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
            sys::cublasSetMathMode(handle, math).result().map_err(said)?;
            Ok(blas)
        }
    }

    pub(super) fn multiply(&mut self, product: &Product<'_, Memory>) -> Result<(), String> {
        let Product { m, n, k, ref a, ref b, ref into, add } = *product;
        let by = ColumnMajor::of(product);
        if m == 0 || n == 0 {
            return Ok(());
        }
        let int = |size: usize| i32::try_from(size).map_err(|_| format!("a matrix of {size} rows"));
        let (one, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        // SAFETY: operands and result lie in their memory, which the caller ordered; alpha and beta are read
        // before the call returns.
        let done = unsafe {
            result::gemm_ex(
                self.handle,
                operation(by.transposed[0]),
                operation(by.transposed[1]),
                int(by.sizes[0])?,
                int(by.sizes[1])?,
                int(by.sizes[2])?,
                (&raw const one).cast(),
                address(&b.place),
                element(&b.place),
                int(by.strides[0])?,
                address(&a.place),
                element(&a.place),
                int(by.strides[1])?,
                (&raw const beta).cast(),
                address(into).cast_mut(),
                element(into),
                int(by.strides[2])?,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        done.map_err(|e| format!("{e:?} for {m} x {k} x {n}"))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing uses them any more.
        let freed = unsafe {
            (result::destroy_handle(self.handle).is_ok(), memory_free(self.workspace).is_ok())
        };
        let _ = freed; // the device failed: what it holds goes with the process
    }
}

/// A product as a library sees it whose matrices are column-major: it computes the transpose, `bᵀ aᵀ`.
struct ColumnMajor {
    /// Whether it transposes `b` and `a`.
    transposed: [bool; 2],
    /// Its m, n and k.
    sizes: [usize; 3],
    /// How far apart the columns of `b`, `a` and the result lie.
    strides: [usize; 3],
}

impl ColumnMajor {
    fn of<M>(product: &Product<'_, M>) -> Self {
        let Product { m, n, k, ref a, ref b, ref into, .. } = *product;
        Self {
            transposed: [b.transposed, a.transposed],
            sizes: [n, m, k],
            strides: [b.place.pitch, a.place.pitch, into.pitch],
        }
    }
}

fn operation(transposed: bool) -> sys::cublasOperation_t {
    match transposed {
        true => sys::cublasOperation_t::CUBLAS_OP_T,
        false => sys::cublasOperation_t::CUBLAS_OP_N,
    }
}

fn address(place: &MatrixRef<'_, Memory>) -> *const c_void {
    (place.memory.address() + place.start as u64) as *const c_void
}

fn element(place: &MatrixRef<'_, Memory>) -> sys::cudaDataType {
    match place.element {
        Element::F32 => sys::cudaDataType::CUDA_R_32F,
        Element::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Operand;
    use super::*;

    /// `op(a) op(b)` as BLAS defines it, column by column.
    fn gemm(by: &ColumnMajor, a: &[f64], b: &[f64]) -> Vec<f64> {
        let [m, n, k] = by.sizes;
        let at = |x: &[f64], which: usize, row: usize, column: usize| {
            let (row, column) = if by.transposed[which] { (column, row) } else { (row, column) };
            assert!(row < by.strides[which], "outside of a column");
            x[row + column * by.strides[which]]
        };
        let mut c = vec![0.0; by.strides[2] * n];
        for j in 0..n {
            for i in 0..m {
                let each = (0..k).map(|l| at(a, 0, i, l) * at(b, 1, l, j));
                c[i + j * by.strides[2]] = each.sum();
            }
        }
        c
    }

    #[test]
    fn the_library_computes_what_is_asked() {
        let (m, n, k) = (2, 3, 4);
        let matrix = |len: usize| (0..len).map(|i| (i * i % 7) as f64).collect::<Vec<_>>();
        for transposed in [(false, false), (false, true), (true, false), (true, true)] {
            // Rows as they lie in memory are one, two and three elements apart.
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
                add: false,
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
            assert_eq!(gemm(&ColumnMajor::of(&product), &b, &a), expected, "{transposed:?}");
        }
    }
}

//! Matrix products by cuBLAS.

use std::ffi::c_void;

use cudarc::cublas::result::CublasError;
use cudarc::cublas::{result, sys};
use cudarc::driver::result::{DriverError, malloc_sync, memory_free};

use super::super::{Element, Operand, Place, Product};
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

impl Blas {
    pub(super) fn new(stream: &Stream) -> Result<Self, String> {
        // SAFETY: opening the library runs its initialisers, which are made to be run so.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublas.so.13 is not found: see docs/gpu.md".into());
        }
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
        if m == 0 || n == 0 {
            return Ok(());
        }
        let int = |size: usize| i32::try_from(size).map_err(|_| format!("a matrix of {size} rows"));
        let (one, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        // The library's matrices are column-major, so it computes the transpose: bᵀ aᵀ.
        // SAFETY: operands and result lie in their memory, which the caller ordered; alpha and beta are read
        // before the call returns.
        let done = unsafe {
            result::gemm_ex(
                self.handle,
                operation(b),
                operation(a),
                int(n)?,
                int(m)?,
                int(k)?,
                (&raw const one).cast(),
                address(&b.place),
                element(&b.place),
                int(if b.transposed { k } else { n })?,
                address(&a.place),
                element(&a.place),
                int(if a.transposed { m } else { k })?,
                (&raw const beta).cast(),
                address(into).cast_mut(),
                element(into),
                int(n)?,
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

fn operation(operand: &Operand<'_, Memory>) -> sys::cublasOperation_t {
    match operand.transposed {
        true => sys::cublasOperation_t::CUBLAS_OP_T,
        false => sys::cublasOperation_t::CUBLAS_OP_N,
    }
}

fn address(place: &Place<'_, Memory>) -> *const c_void {
    (place.memory.address() + place.start as u64) as *const c_void
}

fn element(place: &Place<'_, Memory>) -> sys::cudaDataType {
    match place.element {
        Element::F32 => sys::cudaDataType::CUDA_R_32F,
        Element::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

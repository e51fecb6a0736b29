//! Matrix products with cuBLASLt, which adds bias and residual while results are in registers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result, sys};
use cudarc::driver::result::{DriverError, malloc_sync, memory_free};

use super::super::{Format, MatrixRef, Plus, Product};
use super::allocation::memory::Memory;
use super::allocation::stream::Stream;
use super::plan::{Plan, Shape, WORKSPACE_BYTES};
use super::toolkit::libraries::CUBLAS;

/// A handle of the library, for one stream.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    stream: Stream,
    workspace: u64,
    plans: HashMap<Shape, Plan>,
    compute: sys::cublasComputeType_t,
}

// SAFETY: any thread may use a handle, and one at a time a plan.
unsafe impl Send for Blas {}

pub(super) fn version() -> Result<String, String> {
    use sys::libraryPropertyType_t as Property;
    CUBLAS.require()?;
    let read = |property| {
        let mut value = 0;
        // SAFETY: it writes an int.
        let done = unsafe { sys::cublasLtGetProperty(property, &raw mut value) };
        done.result().map(|()| value).map_err(|e| said(&e))
    };
    let [major, minor] = [read(Property::MAJOR_VERSION)?, read(Property::MINOR_VERSION)?];
    let version = format!("{major}.{minor}.{}", read(Property::PATCH_LEVEL)?);
    CUBLAS.check(major, &version)?;
    Ok(version)
}

impl Blas {
    pub(super) fn new(stream: &Stream, format: Format) -> Result<Self, String> {
        version()?;
        let handle = result::create_handle().map_err(|e| said(&e))?;
        // SAFETY: it is freed once, by `drop`.
        let workspace = unsafe { malloc_sync(WORKSPACE_BYTES) };
        let workspace = workspace.map_err(|e: DriverError| {
            // SAFETY: only this function has it, and it returns now.
            let _ = unsafe { result::destroy_handle(handle) };
            super::said(&e)
        })?;
        let (stream, plans) = (stream.clone(), HashMap::new());
        let compute = match format {
            Format::F32 | Format::Bf16 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Format::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        Ok(Self { handle, stream, workspace, plans, compute })
    }

    pub(super) fn multiply(&mut self, product: &Product<'_, Memory>) -> Result<(), String> {
        let Product { m, n, k, ref a, ref b, ref into, ref plus, ref bias } = *product;
        if m == 0 || n == 0 || (k == 0 && matches!(plus, Plus::Itself)) {
            return Ok(());
        }
        let failed = |e: CublasError| format!("{} for {m} x {k} x {n}", said(&e));
        let [left, right, added, into] = [&b.place, &a.place, product.added(), into].map(address);
        let shape = Shape::of(product, [left, right, added, into]);
        let bias = bias.as_ref().map(address);
        let plan = match self.plans.entry(shape) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                place.insert(Plan::new(self.handle, self.compute, &shape, bias).map_err(failed)?)
            }
        };
        if let Some(bias) = bias {
            plan.set_bias(bias).map_err(failed)?;
        }
        let (one, beta) = (1.0f32, if shape.adds { 1.0f32 } else { 0.0 });
        // SAFETY: operands and result lie in their memory, which the caller ordered. The plan has
        // their shape and alignment, and alpha and beta are read before the call returns.
        let done = unsafe {
            result::matmul(
                self.handle,
                plan.product,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                left,
                plan.matrices[0],
                right,
                plan.matrices[1],
                added,
                plan.matrices[2],
                into.cast_mut(),
                plan.matrices[3],
                &raw const plan.algorithm,
                self.workspace as *mut c_void,
                WORKSPACE_BYTES,
                self.stream.0.cu_stream().cast(),
            )
        };
        done.map_err(failed)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: made by `new`, and nothing uses them any more.
        let freed = unsafe {
            (result::destroy_handle(self.handle).is_ok(), memory_free(self.workspace).is_ok())
        };
        let _ = freed; // the device failed: its memory is freed when the process ends
    }
}

fn said(e: &CublasError) -> String {
    format!("{:?}", e.0)
}

fn address(place: &MatrixRef<'_, Memory>) -> *const c_void {
    (place.memory.address() + place.start as u64) as *const c_void
}

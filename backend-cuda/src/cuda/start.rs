//! Opening a GPU: its streams, its pool, and the kernels compiled for it.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use chimera_core::device::Result;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};

use super::super::{Format, kernels};
use super::allocation::memory::Ends;
use super::allocation::pool::Pool;
use super::allocation::staging::Staging;
use super::allocation::stream::Stream;
use super::product::Blas;
use super::toolkit::capability::has_tensor_cores;
use super::toolkit::compile;
use super::{Cuda, Functions, Inner, LoadedKernel, count, failed, said};

impl Cuda {
    /// Opens a new stream on GPU number `ordinal`, with the kernels of a format.
    ///
    /// # Errors
    /// If the machine lacks the driver, the GPU, cuBLAS or NVRTC, or if bf16 is requested and the
    /// GPU lacks it.
    pub fn new(ordinal: usize, format: Format) -> Result<Self> {
        Self::start(ordinal, format, None)
    }

    /// Uses a given stream of a GPU's primary context, such as one of candle's. Work that others
    /// put into it is ordered with this without events. Further streams are made beside it, and the
    /// given one is not changed.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if the stream has a context other than the primary one, or is the
    /// per-thread default stream: work comes from several threads.
    pub fn on(stream: &Arc<CudaStream>, format: Format) -> Result<Self> {
        let (context, at) = (stream.context(), format!("cuda:{}", stream.context().ordinal()));
        let refused = |reason: &str| Err(failed(&at, "given stream", reason.into()));
        if !context.is_primary() {
            return refused(
                "it is not of the GPU's primary context, whose memory all streams share",
            );
        }
        if is_per_thread(stream) {
            return refused(
                "this name means another stream in each thread: give a stream that was made, like \
                 that of candle's Device::new_cuda_with_stream",
            );
        }
        Self::start(context.ordinal(), format, Some(Arc::clone(stream)))
    }

    fn start(ordinal: usize, format: Format, given: Option<Arc<CudaStream>>) -> Result<Self> {
        let n = count()?;
        let at = format!("cuda:{ordinal}");
        let on_device = |op: &'static str| {
            let at = at.clone();
            move |e: DriverError| failed(&at, op, said(&e))
        };
        if ordinal >= n {
            let reason = format!("this machine has {n} GPU(s); they are numbered from 0");
            return Err(failed(&at, "start", reason));
        }
        // Its own context object, though the driver's context is the same: once streams are made in
        // a context, cudarc makes all its tensors record events, and the owner of a given stream
        // has not asked for that.
        let context = CudaContext::new(ordinal).map_err(on_device("start"))?;
        let title = context.name().map_err(on_device("start"))?;
        let (major, minor) = context.compute_capability().map_err(on_device("start"))?;
        let name = format!("{at} ({title}, sm_{major}{minor})");
        if format == Format::Bf16 && !has_tensor_cores((major, minor)) {
            let reason = "bf16 needs an Ampere or later, sm_80: choose --precision f32".to_string();
            return Err(failed(&name, "start", reason));
        }
        let chip = format!("sm_{major}{minor}");
        let image = compile::cached(&chip, format)
            .map_err(|reason| failed(&name, "compilation of kernels", reason))?;
        let new_stream = || Stream::new(&context, ordinal).map_err(on_device("new stream"));
        let given = given.map(|stream| Stream::of(stream, ordinal));
        let stream = given.map_or_else(new_stream, Ok)?;
        let freeing = new_stream()?;
        let names = compile::text_of(&chip, format);
        let functions = load(&context, &image, &names).map_err(on_device("loading of kernels"))?;
        let blas = Blas::new(&stream, format)
            .map_err(|reason| failed(&name, "start of cuBLAS", reason))?;
        let staging = Staging::new(&stream).map_err(on_device("pinned memory"))?;
        let pool = Pool::of(&context, ordinal).map_err(on_device("memory pool"))?;
        Ok(Self(Arc::new(Inner {
            name,
            format,
            ends: Ends { own: stream.clone(), freeing },
            stream,
            functions: Arc::new(Functions(functions)),
            blas: Mutex::new(blas),
            staging: Mutex::new(staging),
            pool,
            held: Arc::default(),
            counts: Arc::default(),
            timed: Arc::default(),
        })))
    }
}

impl Cuda {
    /// Opens a second stream of the same worker, whose work counts with that of the first.
    pub(super) fn open_beside(&self) -> Result<Self> {
        self.bind()?;
        let stream = Stream::new(self.0.ends.freeing.0.context(), self.0.stream.1);
        let stream = self.named("new stream", stream)?;
        let start = |reason| failed(&self.0.name, "start of cuBLAS", reason);
        let blas = Blas::new(&stream, self.0.format).map_err(start)?;
        let staging = self.named("pinned memory", Staging::new(&stream))?;
        let Inner { name, format, ends, functions, pool, held, counts, timed, .. } = &*self.0;
        Ok(Cuda(Arc::new(Inner {
            name: name.clone(),
            format: *format,
            blas: Mutex::new(blas),
            staging: Mutex::new(staging),
            stream,
            ends: ends.clone(),
            functions: Arc::clone(functions),
            pool: Arc::clone(pool),
            held: Arc::clone(held),
            counts: Arc::clone(counts),
            timed: Arc::clone(timed),
        })))
    }
}

/// Returns true if this names another stream in each thread, as `CU_STREAM_PER_THREAD` does.
fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == 2
}

/// Loads the kernels of an image by their names in the text, and gives each as much shared memory
/// as a block can have. The image stays loaded for as long as the process lives.
fn load(
    context: &CudaContext,
    image: &[u8],
    text: &str,
) -> std::result::Result<HashMap<String, LoadedKernel>, DriverError> {
    use sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as MOST;
    use sys::CUfunction_attribute_enum as Attribute;
    // SAFETY: the image is a complete one of NVRTC, and the context is current.
    unsafe {
        let module = result::module::load_data(image.as_ptr().cast())?;
        let most = result::device::get_attribute(context.cu_device(), MOST)?;
        let function = |name: &str| {
            let terminated = CString::new(name).unwrap_or_default();
            let handle = result::module::get_function(module, terminated)?;
            let own = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            let most_dynamic = most - result::function::get_function_attribute(handle, own)?;
            let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(handle, dynamic, most_dynamic)?;
            let most_shared = usize::try_from(most_dynamic).unwrap_or_default();
            Ok((name.to_string(), LoadedKernel { handle, most_shared }))
        };
        kernels(text).map(function).collect()
    }
}

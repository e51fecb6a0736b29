//! Chimera's [`Device`] and [`Layers`](chimera_core::layers::Layers) on NVIDIA GPUs: the project's
//! own CUDA kernels (`kernels/*.cu`) and matrix products of the vendor's library, through the trait
//! [`Driver`]. The feature `cuda` adds the driver itself, in module `cuda`.
//!
//! With bf16, activations and their gradients are bf16, as are the operands of matrix products.
//! Weights, their gradients, moments, statistics and sums stay f32. An f32 operand is cast if an
//! activation is expected.

mod attention;
mod cross_entropy;
#[cfg(feature = "cuda")]
pub mod cuda;
mod driver;
mod embedding;
mod folders;
mod layers;
mod linear;
mod memory;
mod norm;
mod optimizer;
#[cfg(any(feature = "cuda", test))]
mod order;
mod pointwise;
mod queues;
mod sums;
mod tensor;

use std::fmt;
use std::sync::Arc;

use chimera_core::device::{
    AdamW, Asynchronous, Clock, Device, DeviceError, Dtype, Elements, Overlap, Result, Sgd,
    Updated, WithMomentum,
};

pub use driver::{
    Arg, At, Download, Driver, Lane, Launch, MatrixRef, Operand, Plus, Product, kernels, source,
};
pub use folders::library_folders;
use queues::{Queue, Queues};
pub use tensor::{Element, Format, Tensor};

/// Threads per block of a kernel without special needs.
const BLOCK: usize = 256;
/// Elements per thread in elementwise kernels.
const CHUNK: usize = 8;
/// Threads that share a row.
const WARP: usize = 32;

/// The layers on one [`Driver`], and on one beside it if work overlaps.
pub struct Gpu<D: Driver> {
    queues: Arc<Queues<D>>,
    activations: Element,
    poisoned: bool,
    generic: bool,
}

/// Returns the most threads per block of a kernel: their registers must fit a multiprocessor.
pub fn most_threads(kernel: &str) -> usize {
    match kernel {
        "cross_entropy" => cross_entropy::THREADS,
        "attention_delta" => BLOCK,
        _ if kernel.contains("attention") => attention::THREADS,
        _ => BLOCK,
    }
}

impl<D: Driver> Clone for Gpu<D> {
    fn clone(&self) -> Self {
        Self { queues: Arc::clone(&self.queues), ..*self }
    }
}

impl<D: Driver> fmt::Debug for Gpu<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.driver().name(), self.driver().format())
    }
}

impl<D: Driver> Gpu<D> {
    /// Returns the layers on `driver`, in its format.
    pub fn new(driver: D) -> Self {
        let activations = driver.format().activations();
        Self { queues: Arc::new(Queues::of(driver)), activations, poisoned: false, generic: false }
    }

    /// Fills memory with NaN before it is written, so that tests find missing parts of results.
    pub fn poisoned(self) -> Self {
        Self { poisoned: true, ..self }
    }

    /// Uses the attention kernels for any chip, against which tests compare the others.
    pub fn generic(self) -> Self {
        Self { generic: true, ..self }
    }

    /// Returns the driver.
    pub fn driver(&self) -> &D {
        self.queues.driver()
    }

    fn queue(&self) -> &Queue<D> {
        self.queues.now()
    }
}

impl<D: Driver> Device for Gpu<D> {
    type Tensor = Tensor<D::Memory>;

    fn name(&self) -> String {
        self.driver().name()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Self::Tensor> {
        self.uploaded(shape, data)
    }

    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>> {
        self.downloaded(tensor)
    }

    fn keeps_f32(&self) -> Result<bool> {
        Ok(true)
    }

    fn dtype(&self, tensor: &Self::Tensor) -> Dtype {
        match tensor.element {
            Element::F32 => Dtype::F32,
            Element::Bf16 => Dtype::Bf16,
        }
    }

    fn download_words(&self, tensor: &Self::Tensor, into: &mut Vec<f32>) -> Result<()> {
        into.extend(Dtype::words(&self.bytes_of(tensor)?));
        Ok(())
    }

    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Self::Tensor> {
        match dtype {
            Dtype::Bf16 if self.activations == Element::Bf16 => self.uploaded_bf16(shape, &words),
            dtype => self.uploaded(shape, &dtype.to_f32(words, shape.iter().product())),
        }
    }

    fn download_all(&self, tensors: &[&Self::Tensor]) -> Result<Vec<Elements>> {
        Ok(self.downloaded_all(tensors)?.into_iter().map(Elements::from).collect())
    }

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        self.driver().clock()
    }

    fn zeros(&self, shape: &[usize]) -> Result<Self::Tensor> {
        self.zeroed(shape)
    }

    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize> {
        tensor.shape.clone()
    }

    fn bytes(&self, tensor: &Self::Tensor) -> u64 {
        (tensor.len() * tensor.element.bytes()) as u64
    }

    fn rows(&self, tensor: &Self::Tensor, start: usize, len: usize) -> Result<Self::Tensor> {
        Ok(self.view_rows(tensor, start, len))
    }

    fn reshape(&self, tensor: &Self::Tensor, shape: &[usize]) -> Result<Self::Tensor> {
        Ok(self.reshaped(tensor, shape))
    }

    fn join(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor> {
        self.joined(tensors)
    }

    fn accumulate(&self, into: &mut Self::Tensor, x: &Self::Tensor) -> Result<()> {
        self.add(into, x)
    }

    fn squared_norms(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor> {
        self.sums_of_squares(tensors)
    }

    fn adamw(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()> {
        self.adamw_update(tensors, by)
    }

    fn lamb(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.lamb_update(tensor, by))
    }

    fn sgd(&self, tensors: &mut [WithMomentum<'_, Self::Tensor>], by: &Sgd) -> Result<()> {
        self.sgd_update(tensors, by)
    }

    fn asynchronous(&self) -> Option<&dyn Asynchronous<Tensor<D::Memory>>> {
        Some(self)
    }
}

impl<D: Driver> Asynchronous<Tensor<D::Memory>> for Gpu<D> {
    fn record_ready(&self, tensor: &Tensor<D::Memory>) -> Result<()> {
        self.queue().driver.record_ready(&tensor.buffer.memory)
    }

    fn import(&self, tensor: Tensor<D::Memory>) -> Result<Tensor<D::Memory>> {
        self.imported(tensor)
    }

    fn wait_ready(&self, tensor: &Tensor<D::Memory>) -> Result<()> {
        self.queue().driver.wait_ready(&tensor.buffer.memory)
    }

    fn overlap(&self, piece: Overlap) -> Result<()> {
        self.queues.overlap(piece)
    }
}

impl<D: Driver> Gpu<D> {
    fn run(
        &self,
        kernel: &'static str,
        grid: [usize; 2],
        block: usize,
        args: &[Arg<'_, D::Memory>],
    ) -> Result<()> {
        self.run_shared(kernel, grid, block, 0, args)
    }

    fn run_shared(
        &self,
        kernel: &'static str,
        grid: [usize; 2],
        block: usize,
        shared: usize,
        args: &[Arg<'_, D::Memory>],
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(()); // nothing to do, and a device refuses an empty grid
        }
        debug_assert!(block <= most_threads(kernel), "{block} threads of {kernel}");
        self.queue().driver.launch(&Launch { kernel, grid, block, shared, args })
    }

    /// Runs an elementwise kernel over `n` elements.
    fn run_each(&self, kernel: &'static str, n: usize, args: &[Arg<'_, D::Memory>]) -> Result<()> {
        self.run(kernel, [n.div_ceil(CHUNK * BLOCK), 1], BLOCK, args)
    }

    /// Runs an elementwise kernel over chunks of rows, each row of `width` elements.
    fn run_rows(
        &self,
        kernel: &'static str,
        rows: usize,
        width: usize,
        args: &[Arg<'_, D::Memory>],
    ) -> Result<()> {
        let n_chunks = rows * width.div_ceil(CHUNK);
        self.run(kernel, [n_chunks.div_ceil(BLOCK), 1], BLOCK, args)
    }

    fn failed(&self, op: &'static str, reason: impl Into<String>) -> DeviceError {
        DeviceError::Failed { device: self.driver().name(), op, reason: reason.into() }
    }
}

/// Converts a size to a kernel's argument. No matrix has more columns than fit.
fn int<M>(size: usize) -> Arg<'static, M> {
    Arg::Int(i32::try_from(size).unwrap_or(i32::MAX))
}

fn long<M>(size: usize) -> Arg<'static, M> {
    Arg::Long(size as i64)
}

fn float<M>(x: f64) -> Arg<'static, M> {
    Arg::Float(x as f32)
}

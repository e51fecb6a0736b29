//! Chimera's [`Device`] and [`Layers`](chimera_core::layers::Layers) on the CPU ([`Candle`]).
//!
//! Candle holds the memory and names the device. The layers are written here: composing them from
//! tensor primitives costs a pass over memory per primitive, and candle's own fused ones have no
//! backward. A layer is a matrix product or one fused loop. It uses all threads of the current
//! rayon pool, so run each worker inside a pool of its own.

#![allow(unsafe_code)] // matrix products take pointers, and results are written before they are read

mod kernels;
mod layers;

pub use kernels::{Bf16Products, measured_peak};

use candle_core::Tensor;
use chimera_core::device::{
    AdamW, Device, DeviceError, Dtype, Products, Reload, Result, Sgd, Updated, WithMomentum,
};
use chimera_core::layers::Layout;

use crate::kernels::Operands;
use crate::kernels::pool::{FilePool, IN_WORDS, Stored};

/// A CPU device with candle's tensors.
#[derive(Clone, Debug)]
pub struct Candle {
    device: candle_core::Device,
    /// The operands of products in layers. Products of optimizers are in f32.
    operands: Operands,
    /// The file that holds offloaded tensors.
    pool: FilePool,
}

impl Candle {
    /// Returns the processor in f32.
    pub fn cpu() -> Self {
        let (device, pool) = (candle_core::Device::Cpu, FilePool::default());
        Self { device, operands: Operands::F32, pool }
    }

    /// Returns the processor, with linear layers whose matrix products round their operands to bf16
    /// and sum in f32, by [the fastest way](Bf16Products::fastest). Memory and everything else,
    /// including attention, stay f32 as on [`cpu`](Candle::cpu).
    ///
    /// Such products treat denormal operands as zero, and keep infinities and NaNs.
    pub fn cpu_bf16() -> Self {
        Self::cpu_bf16_by(Bf16Products::fastest()).unwrap_or_else(Self::cpu)
    }

    /// Returns the processor as [`cpu_bf16`](Candle::cpu_bf16) does, multiplying in the given way,
    /// or `None` if this processor does not have its instructions.
    pub fn cpu_bf16_by(products: Bf16Products) -> Option<Self> {
        Some(Self { operands: products.operands()?, ..Self::cpu() })
    }

    /// Creates the file to which [`offload`](Device::offload) moves tensors.
    ///
    /// # Errors
    /// If it cannot be created in the system's folder for temporary files.
    pub fn open_offload_file(&self) -> std::io::Result<()> {
        self.pool.open()
    }

    fn named<T>(&self, op: &'static str, result: candle_core::Result<T>) -> Result<T> {
        result.map_err(|error| DeviceError::Failed {
            device: self.name(),
            op,
            reason: error.to_string(),
        })
    }
}

impl Device for Candle {
    type Tensor = Tensor;

    fn name(&self) -> String {
        format!("{:?}", self.device.location()).to_lowercase()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        self.named("upload", Tensor::from_slice(data, shape, &self.device))
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity(tensor.elem_count());
        self.download_into(tensor, &mut values)?;
        Ok(values)
    }

    fn upload_vec(&self, shape: &[usize], data: Vec<f32>) -> Result<Tensor> {
        self.named("upload", Tensor::from_vec(data, shape, &self.device))
    }

    fn download_into(&self, tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
        let copied = kernels::copy_into(tensor, into);
        self.named("download", copied)
    }

    /// Moves the tensors to a file: the memory of the host is the device's own.
    fn offload(&self, tensors: Vec<Tensor>) -> Result<Reload<Self>> {
        let failed = |device: &Self, op, error: std::io::Error| DeviceError::File {
            device: device.name(),
            op,
            reason: format!("{}: {error}; TMPDIR sets its folder", IN_WORDS),
        };
        let store = |tensor: Tensor| {
            let stored = self.pool.store(&self.download(&tensor)?);
            Ok((tensor.dims().to_vec(), stored.map_err(|error| failed(self, "offload", error))?))
        };
        let stored = tensors.into_iter().map(store).collect::<Result<Vec<_>>>()?;
        let reload = move |device: &Self| {
            let load = |(shape, stored): (Vec<usize>, Stored)| {
                let elements = stored.load().map_err(|error| failed(device, "reload", error))?;
                device.upload_vec(&shape, elements)
            };
            stored.into_iter().map(load).collect()
        };
        Ok(Box::new(reload))
    }

    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        let zeros = Tensor::zeros(shape, candle_core::DType::F32, &self.device);
        self.named("zeros", zeros)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        kernels::packed::shape(tensor)
    }

    fn bytes(&self, tensor: &Tensor) -> u64 {
        (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
    }

    fn dtype(&self, tensor: &Tensor) -> Dtype {
        kernels::packed::dtype(tensor)
    }

    fn download_words(&self, tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.named("download", kernels::packed::copy_words(tensor, into))
    }

    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Tensor> {
        self.named("upload", kernels::packed::tensor(shape, dtype, words))
    }

    fn rows(&self, tensor: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        self.named("rows", tensor.narrow(0, start, len))
    }

    fn reshape(&self, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
        self.named("reshape", tensor.reshape(shape))
    }

    fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        self.named("join", kernels::join(tensors))
    }

    fn accumulate(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        self.named("accumulate", kernels::sums::accumulate(into, x))
    }

    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        self.named("squared_norms", kernels::sums::squared_norms(tensors))
    }

    fn adamw(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        let mut all = tensors.iter_mut();
        self.named("adamw", all.try_for_each(|tensor| kernels::adamw::update(tensor, by)))
    }

    fn lamb(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        let mut all = tensors.iter_mut();
        self.named("lamb", all.try_for_each(|tensor| kernels::lamb::update(tensor, by)))
    }

    fn sgd(&self, tensors: &mut [WithMomentum<'_, Tensor>], by: &Sgd) -> Result<()> {
        let mut all = tensors.iter_mut();
        self.named("sgd", all.try_for_each(|tensor| kernels::sgd::update(tensor, by)))
    }

    fn products(&self) -> Option<&dyn Products<Tensor>> {
        Some(self)
    }
}

impl Products<Tensor> for Candle {
    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let y = kernels::linear::forward(Operands::F32, a, b, Layout::OutIn, None, None);
        self.named("product", y)
    }

    fn newton_schulz(
        &self,
        x: &Tensor,
        coefficients: [f64; 3],
        n_iterations: usize,
    ) -> Result<Tensor> {
        let iterated = kernels::newton_schulz::iterated(x, coefficients, n_iterations);
        self.named("newton_schulz", iterated)
    }
}

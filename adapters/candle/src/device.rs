//! A candle device for the engine.

use candle_core::{DType, Tensor};
use chimera_core::device::{Asynchronous, Device, DeviceError, Dtype, Elements, Products, Result};

/// A candle device with a single element type.
///
/// On a GPU each rank has a device of its own, even if they share the GPU. Candle does not order
/// the streams of two devices with each other, nor those of one device in two threads. So the host
/// waits when a tensor goes from rank to rank.
#[derive(Clone, Debug)]
pub struct Candle {
    device: candle_core::Device,
    dtype: DType,
}

impl Candle {
    /// Creates a device for tensors of `dtype` on `device`.
    pub fn new(device: candle_core::Device, dtype: DType) -> Candle {
        Candle { device, dtype }
    }

    /// Creates a device for tensors of `dtype` on the CPU.
    pub fn cpu(dtype: DType) -> Candle {
        Candle::new(candle_core::Device::Cpu, dtype)
    }

    /// Creates a device for tensors of `dtype` on GPU number `ordinal`, with a stream of its own.
    ///
    /// # Errors
    /// If candle was built without the feature `cuda`, or the machine lacks the GPU.
    pub fn cuda(ordinal: usize, dtype: DType) -> Result<Candle> {
        let device = candle_core::Device::new_cuda_with_stream(ordinal);
        let device = device.map_err(|e| DeviceError::Failed {
            device: format!("GPU {ordinal}"),
            op: "open",
            reason: e.to_string(),
        })?;
        Ok(Candle::new(device, dtype))
    }

    /// Returns candle's device.
    pub fn device(&self) -> &candle_core::Device {
        &self.device
    }

    /// Returns the element type of its tensors.
    pub fn tensor_dtype(&self) -> DType {
        self.dtype
    }

    /// Wraps the error of a candle function that the engine called as `op`.
    pub(crate) fn ran<T>(&self, op: &'static str, result: candle_core::Result<T>) -> Result<T> {
        result.map_err(|e| DeviceError::Failed { device: self.name(), op, reason: e.to_string() })
    }
}

impl Device for Candle {
    type Tensor = Tensor;

    fn name(&self) -> String {
        format!("candle's {:?} in {}", self.device.location(), self.dtype.as_str())
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        let tensor = Tensor::from_slice(data, shape, &self.device);
        self.ran("upload", tensor.and_then(|tensor| tensor.to_dtype(self.dtype)))
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let all = || tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1();
        self.ran("download", all())
    }

    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, self.dtype, &self.device);
        // CUDA allocates no empty memory.
        let tensor = if shape.contains(&0) {
            zeros(&[1]).and_then(|one| one.narrow(0, 0, 0)?.reshape(shape))
        } else {
            zeros(shape)
        };
        self.ran("zeros", tensor)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.dims().to_vec()
    }

    fn rows(&self, tensor: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        self.ran("rows", tensor.narrow(0, start, len))
    }

    fn reshape(&self, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
        self.ran("reshape", tensor.reshape(shape))
    }

    fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        match tensors {
            [one] => self.ran("join", copied(one)), // concatenated, it would share its memory
            all => self.ran("join", Tensor::cat(all, 0)),
        }
    }

    fn accumulate(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        *into = self.ran("accumulate", &*into + x)?;
        Ok(())
    }

    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        if tensors.is_empty() {
            return self.zeros(&[0]);
        }
        let norms = || -> candle_core::Result<Tensor> {
            let norms = tensors.iter().map(|tensor| tensor.sqr()?.sum_all());
            Tensor::stack(&norms.collect::<candle_core::Result<Vec<_>>>()?, 0)
        };
        self.ran("squared_norms", norms())
    }

    fn bytes(&self, tensor: &Tensor) -> u64 {
        (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
    }

    fn dtype(&self, tensor: &Tensor) -> Dtype {
        match tensor.dtype() {
            DType::F64 => Dtype::F64,
            DType::BF16 => Dtype::Bf16,
            _ => Dtype::F32,
        }
    }

    fn download_words(&self, tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
        let flat = self.ran("download_words", tensor.flatten_all())?;
        match self.dtype(tensor) {
            Dtype::F64 => {
                let values: Vec<f64> = self.ran("download_words", flat.to_vec1())?;
                into.extend(Elements::of_f64(Dtype::F64, &values).words);
            }
            Dtype::Bf16 => {
                let values: Vec<half::bf16> = self.ran("download_words", flat.to_vec1())?;
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
                into.extend(Dtype::words(&bytes));
            }
            _ => into.extend(self.download(tensor)?),
        }
        Ok(())
    }

    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Tensor> {
        if dtype != Dtype::F64 {
            return self.upload(shape, &dtype.to_f32(words, shape.iter().product()));
        }
        let values = Elements { dtype, words }.to_f64(shape.iter().product());
        let tensor = Tensor::from_vec(values, shape, &self.device);
        self.ran("upload_words", tensor.and_then(|tensor| tensor.to_dtype(self.dtype)))
    }

    fn products(&self) -> Option<&dyn Products<Tensor>> {
        Some(self)
    }

    fn asynchronous(&self) -> Option<&dyn Asynchronous<Tensor>> {
        Some(self)
    }
}

impl Products<Tensor> for Candle {
    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.ran("product", b.t().and_then(|b| a.matmul(&b)))
    }

    fn newton_schulz(
        &self,
        x: &Tensor,
        [a, b, c]: [f64; 3],
        n_iterations: usize,
    ) -> Result<Tensor> {
        let next = |x: &Tensor| {
            let square = x.matmul(&x.t()?)?;
            let sum = ((square.matmul(&square)? * c)? + (&square * b)?)?;
            sum.matmul(x)? + (x * a)?
        };
        let all = (0..n_iterations).try_fold(x.clone(), |x, _| next(&x));
        self.ran("newton_schulz", all)
    }
}

impl Asynchronous<Tensor> for Candle {
    fn record_ready(&self, _: &Tensor) -> Result<()> {
        self.ran("record_ready", self.device.synchronize())
    }

    fn import(&self, tensor: Tensor) -> Result<Tensor> {
        if self.device.is_cpu() {
            return Ok(tensor);
        }
        // Always a copy: the other rank may free the memory in another thread.
        let copy = if tensor.device().same_device(&self.device) {
            copied(&tensor)
        } else {
            tensor.to_device(&self.device)
        };
        let copy = self.ran("import", copy)?;
        self.ran("import", self.device.synchronize())?;
        Ok(copy)
    }
}

/// Copies only a tensor's own elements: `Tensor::copy` copies the whole storage of a view.
fn copied(tensor: &Tensor) -> candle_core::Result<Tensor> {
    match tensor.elem_count() {
        0 => tensor.copy(), // CUDA allocates no empty memory
        _ => tensor.force_contiguous(),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Storage;

    use super::*;

    #[test]
    fn a_joined_view_is_copied_alone() -> candle_core::Result<()> {
        let device = Candle::cpu(DType::F32);
        let whole = Tensor::arange(0f32, 12.0, device.device())?.reshape((6, 2))?;
        let joined = device.join(&[&whole.narrow(0, 2, 2)?]).expect("joined");
        assert_eq!(joined.to_vec2::<f32>()?, [[4.0, 5.0], [6.0, 7.0]]);
        let (storage, _) = joined.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { panic!("it is on the CPU") };
        assert_eq!(storage.as_slice::<f32>()?.len(), 4);
        Ok(())
    }
}

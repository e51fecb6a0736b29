//! Tensors of candle's CUDA, in and out without a copy.
//!
//! Both sides use the GPU's primary context, so an address means one thing to both. Each way, the side that is given a tensor
//! begins behind the work that the other has put into its stream so far.

use std::sync::Arc;

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Storage};
use chimera_core::device::Result;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::super::{Element, Gpu, Tensor};
use super::Cuda;
use super::memory::Memory;

/// Kernels move so many bytes at once, on such boundaries.
const ALIGNMENT: usize = 16;

impl Gpu<Cuda> {
    /// A tensor of candle's, used where it lies; it is kept until the last use of it here is done. What is written to it here is
    /// seen by candle in what [`to_candle`](Self::to_candle) returns, and, once this and all clones of it are dropped, in the
    /// tensor itself. What candle writes to it meanwhile is not ordered: take it anew then.
    ///
    /// Where candle's device has no stream of its own (`Device::new_cuda`), each thread has one: call this, and drop what it
    /// returns, in the thread in which candle works on the tensor.
    ///
    /// # Errors
    /// If the tensor is not on this GPU, is not f32, or bf16 where activations are, or its elements do not lie one behind
    /// the other from a boundary of 16 bytes on.
    pub fn from_candle(&self, tensor: &candle_core::Tensor) -> Result<Tensor<Memory>> {
        let refused = |reason: &str| Err(self.failed("taking a tensor of candle", reason));
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(CudaStorage { slice, device }) = &*storage else {
            return refused("it is not on a GPU: move it there first (Tensor::to_device)");
        };
        let stream = device.cuda_stream();
        let (element, (address, bytes)) = match slice {
            CudaStorageSlice::F32(slice) => (Element::F32, place(slice, &stream)),
            CudaStorageSlice::BF16(_) if self.activations != Element::Bf16 => {
                return refused("it is bf16, and activations here are f32");
            }
            CudaStorageSlice::BF16(slice) => (Element::Bf16, place(slice, &stream)),
            _ => {
                let dtype = tensor.dtype().as_str();
                return refused(&format!("its elements are {dtype}: only f32 and bf16 are taken"));
            }
        };
        let Some((start, _)) = layout.contiguous_offsets() else {
            return refused(
                "its elements lie apart or in another order: copy it (Tensor::contiguous)",
            );
        };
        if !(address as usize + start * element.bytes()).is_multiple_of(ALIGNMENT) {
            return refused("it begins off a boundary of 16 bytes: copy it (Tensor::copy)");
        }
        // SAFETY: the storage is as long as that, and is there as long as a tensor of it; who clones it is told what is not
        // ordered. Without what candle recorded to differentiate, which would be kept, too.
        let memory =
            unsafe { self.driver().foreign_memory(address, bytes, &stream, tensor.detach())? };
        Ok(Tensor { start, ..Tensor::of(memory, element, tensor.dims().to_vec()) })
    }

    /// A tensor for candle's `device`, where it lies. Candle begins behind what was done to it here so far; what is written to it
    /// here later comes after what candle has done by then. Memory of this backend is candle's from then on, which frees it
    /// when neither side has a tensor of it.
    ///
    /// # Errors
    /// If the device is not of the tensor's GPU, the tensor came from another device of candle's, or its rows lie apart.
    pub fn to_candle(
        &self,
        tensor: &Tensor<Memory>,
        device: &candle_core::Device,
    ) -> Result<candle_core::Tensor> {
        let refused = |reason: &str| Err(self.failed("giving a tensor to candle", reason));
        let memory = tensor.memory();
        let candle_core::Device::Cuda(cuda) = device else {
            return refused("candle's device is not a GPU");
        };
        if cuda.cuda_stream().context().ordinal() != memory.ordinal() {
            return refused("candle's device is another GPU");
        }
        if !tensor.is_packed() {
            return refused(
                "its rows lie apart, as those of logits of an odd number of classes do",
            );
        }
        let own = |address, bytes| self.own(address, bytes, tensor.element, cuda);
        // SAFETY: candle frees the memory on the stream of the device when the last tensor of it is dropped.
        let Some(owner) = (unsafe { memory.owned_by(own)? }) else {
            return refused("its memory has an owner other than candle");
        };
        if !owner.device().same_device(device) {
            return refused("it came from another device of candle's");
        }
        if owner.dtype() != dtype(tensor.element) {
            return refused("its memory came from a tensor of another type");
        }
        let before = owner.layout().start_offset();
        let view = || {
            let elements = owner.flatten_all()?.narrow(0, tensor.start - before, tensor.len())?;
            elements.reshape(tensor.shape())
        };
        view().map_err(|e| self.failed("giving a tensor to candle", e.to_string()))
    }

    /// A tensor of candle's that owns the memory at this address.
    fn own(
        &self,
        address: u64,
        bytes: usize,
        element: Element,
        device: &CudaDevice,
    ) -> Result<(candle_core::Tensor, Arc<CudaStream>)> {
        let stream = device.cuda_stream();
        let n = bytes / element.bytes();
        self.driver().named("binding", stream.context().bind_to_thread())?;
        // SAFETY: the address is that of an allocation of so many bytes, of which any bits are numbers.
        let slice = unsafe {
            match element {
                Element::F32 => CudaStorageSlice::F32(stream.upgrade_device_ptr(address, n)),
                Element::Bf16 => CudaStorageSlice::BF16(stream.upgrade_device_ptr(address, n)),
            }
        };
        let storage = Storage::Cuda(CudaStorage { slice, device: device.clone() });
        let tensor = candle_core::Tensor::from_storage(storage, n, BackpropOp::none(), false);
        Ok((tensor, stream))
    }
}

/// Where a storage begins, and its bytes.
fn place<T>(slice: &CudaSlice<T>, stream: &Arc<CudaStream>) -> (u64, usize) {
    let (address, _) = slice.device_ptr(stream);
    (address, slice.num_bytes())
}

fn dtype(element: Element) -> candle_core::DType {
    match element {
        Element::F32 => candle_core::DType::F32,
        Element::Bf16 => candle_core::DType::BF16,
    }
}

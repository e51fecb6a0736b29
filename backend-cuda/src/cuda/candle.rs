//! Exchange of tensors with candle's CUDA backend, without copies.
//!
//! Both sides use the GPU's primary context, so addresses are valid for both. In each direction,
//! the receiving side starts after the work that the other has put into its stream so far.

use std::sync::Arc;

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Storage};
use chimera_core::device::Result;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::super::{Element, Gpu, Tensor};
use super::Cuda;
use super::allocation::memory::Memory;

/// Kernels move this many bytes at once, with this alignment.
const ALIGNMENT: usize = 16;

impl Gpu<Cuda> {
    /// Uses a tensor of candle's in place, and keeps it until its last use here is done. Candle
    /// sees what is written to it here in the result of [`to_candle`](Self::to_candle). Once this
    /// tensor and all its clones are dropped, it sees the changes in its own tensor too. Writes of
    /// candle meanwhile are not ordered: take the tensor anew after them.
    ///
    /// If candle's device has no stream of its own (`Device::new_cuda`), each thread has one. Then
    /// call this, and drop the result, in the thread in which candle works on the tensor.
    ///
    /// # Errors
    /// If the tensor is not on this GPU, is not f32 (or bf16 if activations are), or is not
    /// contiguous and aligned to 16 bytes.
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
                return refused(&format!(
                    "its elements are {dtype}: only f32 and bf16 are supported"
                ));
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
        // SAFETY: the storage is that long, and exists as long as a tensor of it. The documentation
        // tells callers which work is not ordered. `detach` drops candle's autodiff graph, which
        // would be kept otherwise.
        let memory =
            unsafe { self.driver().foreign_memory(address, bytes, &stream, tensor.detach())? };
        Ok(Tensor { start, ..Tensor::of(memory, element, tensor.dims().to_vec()) })
    }

    /// Returns a tensor for candle's `device` in place. Candle starts after everything done to it
    /// here so far, and later writes here come after candle's work by then. From then on candle
    /// owns memory of this backend, and frees it when neither side has a tensor of it.
    ///
    /// # Errors
    /// If the device is not on the tensor's GPU, the tensor came from another device of candle's,
    /// or its rows lie apart.
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

    /// Returns a candle tensor that owns the memory at this address.
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
        // SAFETY: the address is an allocation of this many bytes, and any bits are numbers.
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

/// Returns the address of a storage, and its size in bytes.
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

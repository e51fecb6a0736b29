//! Slices of candle's tensors, and tensors of freshly written values.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Deref;

use candle_core::{
    CpuStorage, Device, InplaceOp1, Layout, Result, Shape, Storage, StorageRef, Tensor, bail,
};

/// Returns the elements of `tensor`, row-major.
pub(super) fn values(tensor: &Tensor) -> Result<impl Deref<Target = [f32]> + '_> {
    let (storage, layout) = tensor.storage_and_layout();
    let (start, end) = extent(layout)?;
    StorageRef::try_map(storage, |storage| match storage {
        Storage::Cpu(CpuStorage::F32(all)) => all.get(start..end),
        _ => None,
    })
    .or_else(|_| bail!("not a tensor of f32 on the CPU"))
}

/// Lets `f` change the elements of `tensor`, which the caller has as `&mut`: clones change too.
pub(super) fn update(tensor: &Tensor, f: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<()> {
    if tensor.elem_count() == 0 {
        return f(&mut []); // candle takes the strides of an empty tensor for repeated elements
    }
    tensor.inplace_op1(&InPlace(Cell::new(Some(f))))
}

/// Candle calls it once, but through a shared reference.
struct InPlace<F>(Cell<Option<F>>);

impl<F: FnOnce(&mut [f32]) -> Result<()>> InplaceOp1 for InPlace<F> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = extent(layout)?;
        match (storage, self.0.take()) {
            (CpuStorage::F32(all), Some(f)) => f(&mut all[start..end]),
            _ => bail!("not a tensor of f32"),
        }
    }
}

fn extent(layout: &Layout) -> Result<(usize, usize)> {
    match layout.contiguous_offsets() {
        Some(extent) => Ok(extent),
        None => bail!("not row-major: {layout:?}"),
    }
}

/// Memory for a result, not zeroed, since every element is written once anyway.
pub(super) struct Output {
    data: Vec<f32>,
    len: usize,
}

impl Output {
    pub(super) fn new(len: usize) -> Self {
        Self { data: Vec::with_capacity(len), len }
    }

    /// Returns the elements for writing.
    pub(super) fn slots(&mut self) -> &mut [MaybeUninit<f32>] {
        &mut self.data.spare_capacity_mut()[..self.len]
    }

    /// Returns a pointer to the elements, for writers that divide them among threads.
    pub(super) fn place(&mut self) -> Place {
        Place(self.data.as_mut_ptr())
    }

    /// Returns the elements as a tensor.
    ///
    /// # Safety
    ///
    /// All elements have been written.
    pub(super) unsafe fn written(mut self, shape: impl Into<Shape>) -> Result<Tensor> {
        // SAFETY: within the capacity; the caller guarantees that all are written.
        unsafe { self.data.set_len(self.len) };
        Tensor::from_vec(self.data, shape.into(), &Device::Cpu)
    }
}

/// A pointer that threads write through, each to its own elements.
#[derive(Clone, Copy)]
pub(crate) struct Place(*mut f32);

// SAFETY: only unsafe code writes through it, and ensures that no element is written twice at once.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    pub(super) fn new(at: *mut f32) -> Self {
        Self(at)
    }

    /// Returns a pointer to the element at `offset`.
    pub(super) fn at(self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

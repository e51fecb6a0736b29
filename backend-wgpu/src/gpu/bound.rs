//! Parts of tensors that a kernel can bind at once, and grids of workgroups.

use std::ops::Range;

use chimera_core::device::Result;

use super::{ELEMENT, Gpu};
use crate::tensor::Slice;

impl Gpu {
    /// Returns the most elements that an operand can hold at once, at any offset.
    pub(crate) fn max_elements(&self) -> usize {
        ((self.limits.max_binding - self.limits.alignment) / ELEMENT) as usize
    }

    /// Cuts rows into blocks that can be bound at once. Each is a multiple of `unit` rows long,
    /// except the last. `width` is that of the widest operand.
    pub(crate) fn blocks(
        &self,
        op: &'static str,
        rows: usize,
        width: usize,
        unit: usize,
    ) -> Result<impl Iterator<Item = Range<usize>> + use<>> {
        let unit = unit.max(1);
        let most = self.max_elements() / width.max(1) / unit * unit;
        if most == 0 && rows > 0 {
            let reason = format!(
                "{unit} row(s) of {width} elements are more than the {} bytes that it binds at once",
                self.limits.max_binding
            );
            return Err(self.failed(op, reason));
        }
        Ok((0..rows).step_by(most.max(1)).map(move |start| start..rows.min(start + most)))
    }

    /// Returns a grid of `n` workgroups in a row, laid out over two dimensions.
    pub(crate) fn grid(&self, n: usize) -> [u32; 3] {
        let most = self.limits.max_groups as usize;
        let y = n.div_ceil(most);
        let x = if y == 0 { 0 } else { n.div_ceil(y) };
        [x as u32, y as u32, 1]
    }

    pub(crate) fn max_groups(&self) -> u32 {
        self.limits.max_groups
    }

    pub(super) fn window<'a>(&self, slice: &Slice<'a>) -> Window<'a> {
        // An empty slice may lie at the end of its memory, where nothing can be bound.
        let first = if slice.len == 0 { 0 } else { slice.start as u64 };
        let aligned = self.limits.alignment / ELEMENT;
        let before = first % aligned;
        let size = (before + slice.len as u64).max(1) * ELEMENT;
        assert!(size <= self.limits.max_binding, "{} elements are bound at once", slice.len);
        Window {
            buffer: slice.memory.buffer(),
            offset: (first - before) * ELEMENT,
            size,
            start: before as u32,
        }
    }
}

/// The part of a buffer that is bound for an operand.
pub(super) struct Window<'a> {
    buffer: &'a wgpu::Buffer,
    offset: u64,
    size: u64,
    /// The operand's first element within the window.
    pub(super) start: u32,
}

impl<'a> Window<'a> {
    pub(super) fn entry(&self, binding: u32) -> wgpu::BindGroupEntry<'a> {
        wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: self.buffer,
                offset: self.offset,
                size: std::num::NonZeroU64::new(self.size),
            }),
        }
    }
}

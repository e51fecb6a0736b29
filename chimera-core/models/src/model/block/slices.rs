//! Attention of a slice of each sequence, whose rows also see those of the slices before it.

use std::cell::RefCell;
use std::ops::Range;

use chimera_engine::device::Result;
use chimera_engine::layers::{Attention, Layers, join_samples, rows_of_samples};
use chimera_engine::stage::Left;

/// A slice on its way through the blocks of a stage, forward or backward. A slice leaves the
/// queries, keys and values of each block for later ones.
pub(crate) struct PassSlice<'p, T> {
    /// The first block of the stage, and the first with a backward pass.
    first_blocks: [usize; 2],
    /// For this slice and those before it, the end within a sample.
    ends: Vec<usize>,
    past: &'p [Left<T>],
    /// The gradient of what this slice left, one tensor per block with a backward pass; `None` for
    /// the last slice.
    d_left: Option<Left<T>>,
    /// The queries, keys and values that this slice left, by block.
    left: RefCell<Left<T>>,
    /// The gradients of what each earlier slice left, by block, the last block first.
    d_past: RefCell<Vec<Left<T>>>,
}

impl<'p, T: Clone> PassSlice<'p, T> {
    /// Makes the slice after those that left `past`. Slices end at these rows of a sample.
    pub(crate) fn new(
        first_blocks: [usize; 2],
        ends: Vec<usize>,
        past: &'p [Left<T>],
        d_left: Option<Left<T>>,
    ) -> Self {
        let d_past = RefCell::new(past.iter().map(|_| Left::new()).collect());
        PassSlice { first_blocks, ends, past, d_left, left: RefCell::default(), d_past }
    }

    /// Returns what the slice left forward, and backward the gradients of what earlier ones left.
    pub(crate) fn end(self) -> (Left<T>, Vec<Left<T>>) {
        let mut d_past = self.d_past.into_inner();
        d_past.iter_mut().for_each(|blocks| blocks.reverse());
        (self.left.into_inner(), d_past)
    }

    /// Returns the rows of slice `index` in a sample.
    fn rows(&self, index: usize) -> Range<usize> {
        index.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[index]
    }

    fn own(&self) -> Range<usize> {
        self.rows(self.past.len())
    }

    /// Returns queries, keys and values of each sample up to the end of the slice.
    fn all<D: Layers<Tensor = T>>(&self, device: &D, block: usize, qkv: &T) -> Result<T> {
        if self.past.is_empty() {
            return Ok(qkv.clone());
        }
        let before = self.past.iter().map(|left| &left[block - self.first_blocks[0]]);
        let parts: Vec<&T> = before.chain([qkv]).collect();
        join_samples(device, &parts, device.shape(qkv)[0] / self.own().len())
    }

    pub(crate) fn attention<D: Layers<Tensor = T>>(
        &self,
        device: &D,
        block: usize,
        qkv: &T,
        by: &Attention<'_>,
    ) -> Result<(T, T)> {
        let all = self.all(device, block, qkv)?;
        self.left.borrow_mut().push(qkv.clone());
        device.attention_slice(&all, self.own().start, by)
    }

    /// Returns the gradient of the slice's own `qkv`, including that from later slices.
    pub(crate) fn attention_dx<D: Layers<Tensor = T>>(
        &self,
        device: &D,
        block: usize,
        dy: &T,
        qkv: &T,
        mixed: (&T, &T),
        by: &Attention<'_>,
    ) -> Result<T> {
        let all = self.all(device, block, qkv)?;
        let d_all = device.attention_slice_dx(dy, &all, mixed, self.own().start, by)?;
        let part = |index| rows_of_samples(device, &d_all, by.context, self.rows(index));
        for (index, d_past) in self.d_past.borrow_mut().iter_mut().enumerate() {
            d_past.push(part(index)?);
        }
        let mut own = part(self.past.len())?;
        if let Some(d_left) = &self.d_left {
            device.accumulate(&mut own, &d_left[block - self.first_blocks[1]])?;
        }
        Ok(own)
    }
}

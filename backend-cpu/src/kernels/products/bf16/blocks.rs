//! Blocking: the order of packing and multiplying parts of the operands, and its split into tasks.
//!
//! The summed dimension and the columns are cut into blocks. A block of the right operand is packed
//! once, for all threads. Then each task packs some rows of the left one, which stay in its core's
//! second-level cache. It passes over them once per panel of columns, which stays in the
//! first-level cache. Blocks of the summed dimension depend only on its length and follow one
//! another, so an element has the same bits for any number of threads.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::super::matrix::Matrix;
use super::form::{Form, LANES, Pairs, Singles};
use super::kernel::{self, Tile};
use super::pack::{self, Source};
use super::{PackedForm, Supported};
use crate::kernels::memory::Place;

/// The longest block of the summed dimension.
const DEPTH: usize = 512;

/// Columns whose panels are packed together.
const WIDE: usize = 2048;

/// Panels of columns that one thread packs together, from pieces of rows of that width.
const PANELS: usize = 4;

/// Rows of a task.
const HIGH: usize = 128;

/// The most multiplications of a product that is not worth a second thread.
const ALONE: usize = 1 << 17;

thread_local! {
    /// Packed rows and packed columns of this thread, kept between calls.
    static ROWS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    static COLUMNS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// A product and its destination, as in [`matmul`](super::super::matmul::matmul).
#[derive(Clone, Copy)]
pub(crate) struct RoundedProduct<'a> {
    pub(crate) into: Place,
    pub(crate) row_step: usize,
    pub(crate) add: bool,
    pub(crate) scale: f32,
    pub(crate) a: Matrix<'a>,
    pub(crate) b: Matrix<'a>,
}

impl RoundedProduct<'_> {
    /// Multiplies with `threads` threads of the current pool.
    ///
    /// # Safety
    ///
    /// As for [`matmul`](super::super::matmul::matmul).
    pub(crate) unsafe fn run(self, supported: Supported, threads: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match supported.form {
                PackedForm::Pairs => self.run_as::<Pairs>(threads),
                PackedForm::Singles => self.run_as::<Singles>(threads),
            }
        }
    }

    /// [`run`](Self::run) in one form.
    ///
    /// # Safety
    ///
    /// As for [`RoundedProduct::run`]; the processor has the instructions.
    unsafe fn run_as<F: Form>(self, threads: usize) {
        let (rows, depth, columns) = (self.a.rows, self.a.columns, self.b.columns);
        let threads = if rows * depth * columns < ALONE { 1 } else { threads };
        let block = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).next_multiple_of(2).max(2);
        for left in (0..columns).step_by(WIDE) {
            let across = left..columns.min(left + WIDE);
            // An empty sum is a block too: it writes zeros.
            for start in (0..depth.max(1)).step_by(block) {
                let deep = start..depth.min(start + block);
                // SAFETY: a part of the product; parts run one after another.
                unsafe { self.block::<F>(across.clone(), deep, threads) };
            }
        }
    }

    /// Multiplies one block of the right operand, and adds the result.
    ///
    /// # Safety
    ///
    /// As for [`RoundedProduct::run`]; earlier blocks of the same columns have been run.
    unsafe fn block<F: Form>(self, across: Range<usize>, deep: Range<usize>, threads: usize) {
        let n_words = F::words(deep.len());
        let panel = n_words * F::COLUMNS;
        let mut packed = COLUMNS.take();
        let len = across.len().div_ceil(F::COLUMNS) * panel;
        packed.resize(len.max(packed.len()), 0);
        let pack = |(nth, into): (usize, &mut [u32])| {
            let first = across.start + nth * PANELS * F::COLUMNS;
            let last = across.end.min(first + PANELS * F::COLUMNS);
            let source = Source::of(self.b.t(), first..last, deep.clone());
            // SAFETY: the processor has the instructions; the source is in bounds, and the panels
            // fit it.
            unsafe { pack::pack::<F>(source, into.as_mut_ptr(), F::COLUMNS) };
        };
        // At least one: chunks cannot be empty.
        let chunk = (PANELS * panel).max(1);
        if threads == 1 {
            packed[..len].chunks_mut(chunk).enumerate().for_each(pack);
        } else {
            packed[..len].par_chunks_mut(chunk).enumerate().for_each(pack);
        }
        let packed_columns = &packed[..len];
        let rows = self.a.rows;
        let n_high = rows.div_ceil(HIGH).max(1);
        let n_across = if threads == 1 { 1 } else { (2 * threads).div_ceil(n_high) };
        let n_panels = across.len().div_ceil(F::COLUMNS);
        let task = |nth: usize| {
            let (down, along) = (nth / n_across, nth % n_across);
            let down = share(rows.div_ceil(LANES), down, n_high);
            let down = down.start * LANES..rows.min(down.end * LANES);
            let panels = share(n_panels, along, n_across);
            // SAFETY: each task writes to its own part of the result.
            unsafe { self.task::<F>(down, &across, &deep, panels, packed_columns) };
        };
        if threads == 1 {
            (0..n_high * n_across).for_each(task);
        } else {
            (0..n_high * n_across).into_par_iter().for_each(task);
        }
        COLUMNS.set(packed);
    }

    /// Multiplies the rows `down` by some packed panels of the columns `across`.
    ///
    /// # Safety
    ///
    /// As for [`RoundedProduct::block`]; nobody else touches these rows of these columns.
    unsafe fn task<F: Form>(
        self,
        down: Range<usize>,
        across: &Range<usize>,
        deep: &Range<usize>,
        panels: Range<usize>,
        columns: &[u32],
    ) {
        let n_words = F::words(deep.len());
        let mut packed = ROWS.take();
        let len = down.len().next_multiple_of(LANES) * n_words;
        packed.resize(len.max(packed.len()), 0);
        let source = Source::of(self.a, down.clone(), deep.clone());
        // SAFETY: the processor has the instructions; the source is in bounds, the panels fit it.
        unsafe { pack::pack::<F>(source, packed.as_mut_ptr(), kernel::ROWS) };
        for panel in panels {
            let left = across.start + panel * F::COLUMNS;
            let b = &columns[panel * F::COLUMNS * n_words..][..F::COLUMNS * n_words];
            for top in down.clone().step_by(kernel::ROWS) {
                let a = &packed[(top - down.start) * n_words..][..kernel::ROWS * n_words];
                let tile = Tile {
                    into: self.into.at(top * self.row_step + left),
                    row_step: self.row_step,
                    rows: kernel::ROWS.min(down.end - top),
                    columns: F::COLUMNS.min(across.end - left),
                    add: self.add || deep.start > 0,
                    scale: self.scale,
                };
                // SAFETY: the processor has the instructions, and the panels have this many words.
                // The tile is the task's. If it is added to, the caller or an earlier block has
                // written it.
                unsafe { kernel::multiply::<F>(n_words, a.as_ptr(), b.as_ptr(), tile) };
            }
        }
        ROWS.set(packed);
    }
}

/// Returns the `nth` of `n` almost equal parts of `0..len`.
fn share(len: usize, nth: usize, n: usize) -> Range<usize> {
    len * nth / n..len * (nth + 1) / n
}

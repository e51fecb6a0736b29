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
use super::form::{Form, Source, Strip};
use crate::kernels::memory::Place;

/// Columns whose panels are packed together.
const WIDE: usize = 2048;

/// Panels of columns that one thread packs together, from pieces of rows of that width.
const PANELS: usize = 4;

/// Rows of a task, and a multiple of the rows of any tile.
const HIGH: usize = 128;
const ROWS: usize = 32;

/// The most multiplications of a product that is not worth a second thread.
const ALONE: usize = 1 << 17;

thread_local! {
    /// Packed rows and packed columns of this thread, kept between calls.
    static ROWS_PACKED: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
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
    /// As for [`matmul`](super::super::matmul::matmul); the processor has the form's instructions.
    pub(crate) unsafe fn run(self, form: Form, threads: usize) {
        let (rows, depth, columns) = (self.a.rows, self.a.columns, self.b.columns);
        let threads = if rows * depth * columns < ALONE { 1 } else { threads };
        let group = form.group;
        let block =
            depth.div_ceil(depth.div_ceil(form.depth).max(1)).next_multiple_of(group).max(group);
        for left in (0..columns).step_by(WIDE) {
            let across = left..columns.min(left + WIDE);
            // An empty sum is a block too: it writes zeros.
            for start in (0..depth.max(1)).step_by(block) {
                let deep = start..depth.min(start + block);
                // SAFETY: a part of the product; parts run one after another.
                unsafe { self.block(form, across.clone(), deep, threads) };
            }
        }
    }

    /// Multiplies one block of the right operand, and adds the result.
    ///
    /// # Safety
    ///
    /// As for [`RoundedProduct::run`]; earlier blocks of the same columns have been run.
    unsafe fn block(self, form: Form, across: Range<usize>, deep: Range<usize>, threads: usize) {
        let n_words = form.words(deep.len());
        let panel = n_words * form.columns;
        let mut packed = COLUMNS.take();
        let n_panels = across.len().div_ceil(form.columns);
        let len = n_panels * panel;
        packed.resize(len.max(packed.len()), 0);
        let pack = |(nth, into): (usize, &mut [u32])| {
            let first = across.start + nth * PANELS * form.columns;
            let last = across.end.min(first + PANELS * form.columns);
            let source = Source::of(self.b.t(), first..last, deep.clone());
            // SAFETY: the source is in bounds, and the panels fit it.
            unsafe { (form.pack_columns)(source, into.as_mut_ptr()) };
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
        let task = |nth: usize| {
            let (down, along) = (nth / n_across, nth % n_across);
            let down = share(rows.div_ceil(ROWS), down, n_high);
            let down = down.start * ROWS..rows.min(down.end * ROWS);
            let panels = share(n_panels, along, n_across);
            // SAFETY: each task writes to its own part of the result.
            unsafe { self.task(form, down, &across, &deep, panels, packed_columns) };
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
    unsafe fn task(
        self,
        form: Form,
        down: Range<usize>,
        across: &Range<usize>,
        deep: &Range<usize>,
        panels: Range<usize>,
        columns: &[u32],
    ) {
        let n_words = form.words(deep.len());
        let mut packed = ROWS_PACKED.take();
        let len = down.len().next_multiple_of(ROWS) * n_words;
        packed.resize(len.max(packed.len()), 0);
        let source = Source::of(self.a, down.clone(), deep.clone());
        // SAFETY: the source is in bounds, and the panels fit it.
        unsafe { (form.pack_rows)(source, packed.as_mut_ptr()) };
        for panel in panels {
            let left = across.start + panel * form.columns;
            let strip = Strip {
                n_words,
                a: packed.as_ptr(),
                b: columns[panel * form.columns * n_words..][..form.columns * n_words].as_ptr(),
                into: self.into.at(down.start * self.row_step + left),
                row_step: self.row_step,
                rows: down.len(),
                columns: form.columns.min(across.end - left),
                add: self.add || deep.start > 0,
                scale: self.scale,
            };
            // SAFETY: the panels have this many words. The strip is the task's. If it is added to,
            // the caller or an earlier block has written it.
            unsafe { (form.multiply)(strip) };
        }
        ROWS_PACKED.set(packed);
    }
}

/// Returns the `nth` of `n` almost equal parts of `0..len`.
fn share(len: usize, nth: usize, n: usize) -> Range<usize> {
    len * nth / n..len * (nth + 1) / n
}

//! The interface between blocking and the ways to multiply packed operands.

use std::ops::Range;

use super::super::matrix::Matrix;

/// Elements of a lane in a word of 32 bits.
pub(super) const ELEMENTS: usize = 2;

/// A way to multiply: the layout of packed operands, and the functions that pack and multiply them.
/// Their safety contract includes that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Elements of a lane that are multiplied together: its words end in zeros up to a whole group.
    pub(super) group: usize,
    /// Columns of a tile of the result, which is in registers. With its rows, 32 at most, they are
    /// as many sums as hide the latency of the instruction.
    pub(super) columns: usize,
    /// The longest block of the summed dimension: a panel of columns fits the first-level cache.
    pub(super) depth: usize,
    /// Packs rows of the left operand, in panels as high as a tile.
    pub(super) pack_rows: unsafe fn(Source, *mut u32),
    /// Packs columns of the right operand, in panels as wide as a tile.
    pub(super) pack_columns: unsafe fn(Source, *mut u32),
    /// Multiplies packed rows by a panel of columns.
    pub(super) multiply: unsafe fn(Strip),
}

impl Form {
    /// Returns the words that hold `len` elements of a lane.
    pub(super) fn words(self, len: usize) -> usize {
        len.next_multiple_of(self.group) / ELEMENTS
    }
}

/// Some lanes of an operand in memory: rows of the left one, columns of the right one.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// The first element of the first lane.
    pub(super) from: *const f32,
    /// The distance between lanes, and between neighbours within a lane: one of the two is 1.
    pub(super) lane_step: usize,
    pub(super) step: usize,
    /// The number of lanes, and of elements in each.
    pub(super) lanes: usize,
    pub(super) len: usize,
}

impl Source {
    /// Returns some columns of some rows of a matrix, each row as a lane.
    pub(super) fn of(matrix: Matrix<'_>, rows: Range<usize>, columns: Range<usize>) -> Self {
        assert!(rows.end <= matrix.rows && columns.end <= matrix.columns);
        let first = rows.start * matrix.row_step + columns.start * matrix.column_step;
        Self {
            from: matrix.data.as_ptr().wrapping_add(first),
            lane_step: matrix.row_step,
            step: matrix.column_step,
            lanes: rows.len(),
            len: columns.len(),
        }
    }

    /// Returns true if neighbouring lanes are consecutive in memory, not the elements of a lane.
    pub(super) fn is_interleaved(self) -> bool {
        self.lane_step == 1
    }
}

/// Some rows of the result by one panel of columns.
#[derive(Clone, Copy)]
pub(crate) struct Strip {
    /// Words of each lane.
    pub(super) n_words: usize,
    /// Panels of packed rows.
    pub(super) a: *const u32,
    /// The panel of columns.
    pub(super) b: *const u32,
    /// The first element of the result, and the distance between its rows.
    pub(super) into: *mut f32,
    pub(super) row_step: usize,
    /// Rows and columns in use.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Whether the scaled sums are added to the elements, or replace them.
    pub(super) add: bool,
    pub(super) scale: f32,
}

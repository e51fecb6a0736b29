//! Tests of the order of single cells and of the lanes of their worker.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Windows;
use super::side::{Side, count};

/// The number of cells at each end of a lane whose order is tested: first of few, then of more.
const N_ENDS: [usize; 3] = [1, 2, 4];

/// Rounds in which windows shrink after a test.
const N_ROUNDS: usize = 5;

/// Tests of orders that end by a time.
struct OrderTests<'l, L> {
    until: f64,
    /// Number of tests that are left.
    n_left: usize,
    is_late: &'l L,
    /// By side, cell and lane: the windows at the last test.
    tested: FxHashMap<Question, [f64; 4]>,
}

/// A side, a cell, and a lane of its worker.
type Question = (usize, u32, u32);

impl<'l, L: Fn() -> bool> OrderTests<'l, L> {
    fn new(until: f64, n_tests: usize, is_late: &'l L) -> OrderTests<'l, L> {
        OrderTests { until, n_left: n_tests, is_late, tested: FxHashMap::default() }
    }

    fn is_over(&self) -> bool {
        self.n_left == 0 || (self.is_late)()
    }

    /// Returns the windows after the rules, `None` if no order ends in time.
    fn shrunk(&self, windows: &Windows) -> Option<Windows> {
        windows.until(self.until, N_ROUNDS, self.is_late)
    }

    /// Asks for each cell near an end of its lane and each other lane of its worker, which cells of
    /// the lane cannot run after it.
    fn run(&mut self, mut windows: Windows) -> Option<Windows> {
        for n_ends in N_ENDS {
            let mut is_changed = true;
            while is_changed {
                is_changed = false;
                for question in windows.questions(n_ends) {
                    while let Some(other) = windows.first_open(question) {
                        let (side, cell, _) = question;
                        let room = windows.room(cell, other);
                        if self.tested.get(&question) == Some(&room) {
                            break;
                        }
                        if self.is_over() {
                            return Some(windows);
                        }
                        self.n_left -= 1;
                        let mut test = windows.clone();
                        test.put_before(side, cell, other);
                        if self.shrunk(&test).is_some() {
                            self.tested.insert(question, room);
                            break;
                        }
                        windows.put_before(side, other, cell);
                        windows = self.shrunk(&windows)?;
                        is_changed = true;
                    }
                }
            }
        }
        Some(windows)
    }
}

impl Windows {
    /// Shrinks the windows of orders that end by `until` further, by at most `n_tests` tests: if a
    /// cell cannot run before another one of its worker, it runs after it. `None` if there is no
    /// such order.
    ///
    /// Thus two workers are looked at at once. If a cell is early in its worker's row, other cells
    /// of the row are late; if it is late, the worker does all that comes before it, and another
    /// worker must have made what that needs (Carlier and Pinson, EJOR 1994).
    pub(crate) fn ordered(
        self,
        until: f64,
        n_tests: usize,
        is_late: &impl Fn() -> bool,
    ) -> Option<Windows> {
        OrderTests::new(until, n_tests, is_late).run(self)
    }

    /// All pairs of cells among the first `n_ends` of their lane, from each side, and other lanes:
    /// the busiest workers first.
    fn questions(&self, n_ends: usize) -> Vec<Question> {
        let [heads, tails] = &self.around;
        let first = &self.sides[0];
        let mut rows: Vec<(f64, usize)> = (0..first.rows.len())
            .map(|row| (first.bound(&first.rows[row], heads, tails), row))
            .collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut all = Vec::new();
        for (_, row) in rows {
            for (number, side) in self.sides.iter().enumerate() {
                let of = |lane: &Vec<u32>| lane.first().map(|id| side.in_row[*id as usize].0);
                let lanes = (0..).zip(&side.lanes).filter(|(_, lane)| of(lane) == Some(row));
                let lanes: Vec<(u32, &Vec<u32>)> = lanes.collect();
                for (own, lane) in &lanes {
                    for cell in lane.iter().take(n_ends) {
                        let others = lanes.iter().filter(|(other, _)| other != own);
                        all.extend(others.map(|(other, _)| (number, *cell, *other)));
                    }
                }
            }
        }
        all
    }

    /// The first cell of a lane that is not known to run before the cell, unless it is known to run
    /// after it.
    fn first_open(&self, (side, cell, lane): Question) -> Option<u32> {
        let Side { lanes, in_row, in_lane, .. } = &self.sides[side];
        let waits = |id: u32| {
            let (row, at) = in_row[id as usize];
            &self.waits[side][row][at]
        };
        let other = *lanes[lane as usize].get(count(waits(cell), lane) as usize)?;
        let (own, place) = in_lane[cell as usize];
        (count(waits(other), own) <= place).then_some(other)
    }

    /// The times around two cells.
    fn room(&self, cell: u32, other: u32) -> [f64; 4] {
        let [heads, tails] = &self.around;
        let [cell, other] = [cell as usize, other as usize];
        [heads[cell], tails[cell], heads[other], tails[other]]
    }

    /// Puts one cell before another of its worker, as seen from a side.
    fn put_before(&mut self, side: usize, first: u32, second: u32) {
        for (side, first, second) in [(side, first, second), (1 - side, second, first)] {
            let sides = Arc::clone(&self.sides);
            let of = &sides[side];
            let (row, _) = of.in_row[first as usize];
            of.wait(Arc::make_mut(&mut self.waits[side][row]), second, first);
            let end = self.around[side][first as usize] + of.takes[first as usize];
            self.raise(side, second, end);
        }
    }
}

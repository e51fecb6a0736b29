//! The token and position tables.

use chimera_core::device::Result;

use super::{MAX_ROUNDS, cut, number};
use crate::gpu::{Call, Gpu};
use crate::shader::{EMBEDDING, Kernel};
use crate::tensor::Tensor;

static FORWARD: Kernel =
    Kernel { source: &EMBEDDING, entry: "forward", n_written: 1, n_read: 3, n_numbers: 8 };
static TOKENS: Kernel =
    Kernel { source: &EMBEDDING, entry: "backward_tokens", n_written: 1, n_read: 2, n_numbers: 6 };
static POSITIONS: Kernel = Kernel {
    source: &EMBEDDING,
    entry: "backward_positions",
    n_written: 1,
    n_read: 1,
    n_numbers: 6,
};

impl Gpu {
    pub(crate) fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Tensor,
        positions: &Tensor,
    ) -> Result<Tensor> {
        let op = "embedding";
        let (rows, hidden) = (ids.len(), tokens.width());
        let y = self.tensor(op, &[rows, hidden])?;
        let on_device = self.upload_ids(op, ids)?;
        let places: Vec<_> = self.blocks(op, context, hidden, 1)?.collect();
        for block in self.blocks(op, rows, hidden, 1)? {
            let [y, ids] = [&y, &on_device].map(|t| t.rows(block.start, block.len()));
            // Each block of the tables fills the rows whose ids and positions it has.
            for known in self.blocks(op, tokens.n_rows(), hidden, 1)? {
                let tokens = tokens.rows(known.start, known.len());
                for place in &places {
                    let positions = positions.rows(place.start, place.len());
                    self.run(
                        op,
                        &Call {
                            kernel: &FORWARD,
                            constants: self.tuning().element_constants(),
                            operands: &[y.all(), tokens.all(), positions.all(), ids.all()],
                            numbers: &[
                                block.len(),
                                hidden,
                                context,
                                block.start,
                                known.start,
                                known.end,
                                place.start,
                                place.end,
                            ]
                            .map(number),
                            groups: self.element_grid(block.len() * hidden),
                        },
                    )?;
                }
            }
        }
        Ok(y)
    }

    pub(crate) fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Tensor,
        d_tokens: &Tensor,
        d_positions: &Tensor,
    ) -> Result<()> {
        let op = "embedding_dw";
        let (rows, hidden) = (ids.len(), dy.width());
        let blocks = self.blocks(op, rows, hidden, 1)?;
        // All rows of a block may have the same id or, with a context of one, the same position.
        for block in blocks.flat_map(|block| cut(block, MAX_ROUNDS)) {
            let dy = dy.rows(block.start, block.len());
            let order = Order::of(ids.get(block.clone()).unwrap_or_default());
            let on_device = self.upload_ids(op, &order.words())?;
            for known in self.blocks(op, d_tokens.n_rows(), hidden, 1)? {
                let before = |end: usize| order.ids.partition_point(|id| (*id as usize) < end);
                let (first, end) = (before(known.start), before(known.end));
                let d_tokens = d_tokens.rows(known.start, known.len());
                let starts = order.rows.len();
                let ids = starts + order.starts.len();
                self.run(
                    op,
                    &Call {
                        kernel: &TOKENS,
                        constants: self.tuning().element_constants(),
                        operands: &[d_tokens.all(), dy.all(), on_device.all()],
                        numbers: &[hidden, end - first, first, known.start, starts, ids]
                            .map(number),
                        groups: self.element_grid((end - first) * hidden),
                    },
                )?;
            }
            for place in self.blocks(op, context, hidden, 1)? {
                let d_positions = d_positions.rows(place.start, place.len());
                let (first, n) = (place.start, place.len());
                self.run(
                    op,
                    &Call {
                        kernel: &POSITIONS,
                        constants: self.tuning().element_constants(),
                        operands: &[d_positions.all(), dy.all()],
                        numbers: &[block.len(), hidden, context, block.start, first, n].map(number),
                        groups: self.element_grid(n * hidden),
                    },
                )?;
            }
        }
        Ok(())
    }
}

/// Rows sorted by id, so that the gradient of each row of the table has one owner.
struct Order {
    /// All rows, grouped by id and in order within a group.
    rows: Vec<u32>,
    /// The start of each group, and the end of the last.
    starts: Vec<u32>,
    ids: Vec<u32>,
}

impl Order {
    fn of(ids: &[u32]) -> Order {
        let mut rows: Vec<(u32, u32)> = ids.iter().copied().zip(0..).collect();
        rows.sort_unstable();
        let groups = || rows.chunk_by(|a, b| a.0 == b.0);
        let mut starts = vec![0];
        starts.extend(groups().scan(0, |end, group| {
            *end += number(group.len());
            Some(*end)
        }));
        let ids = groups().filter_map(|group| Some(group.first()?.0)).collect();
        Order { starts, ids, rows: rows.into_iter().map(|(_, row)| row).collect() }
    }

    /// Returns it in the layout that the kernel reads.
    fn words(&self) -> Vec<u32> {
        [&self.rows[..], &self.starts, &self.ids].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::Order;

    #[test]
    fn rows_are_grouped_by_id() {
        let Order { rows, starts, ids } = Order::of(&[7, 0, 7, 2, 0, 7]);
        assert_eq!(rows, [1, 4, 3, 0, 2, 5]);
        assert_eq!(starts, [0, 2, 3, 6]);
        assert_eq!(ids, [0, 2, 7]);
    }
}

//! The documents of samples: each ends with an end token, or with the sample.

use chimera_engine::device::{Device, Result};
use chimera_engine::layers::Mask;

/// The documents of some samples.
pub(super) struct Documents {
    /// The start of each row's document within its sample.
    firsts: Vec<u32>,
    context: usize,
}

impl Documents {
    /// Finds the documents in samples of `context` tokens: one begins after each token `end`.
    pub(super) fn of(ids: &[u32], end: u32, context: usize) -> Documents {
        let of_sample = |sample: &[u32]| {
            let mut first = 0;
            let each = sample.iter().enumerate().map(move |(row, id)| {
                let of_row = first;
                if *id == end {
                    first = row as u32 + 1;
                }
                of_row
            });
            each.collect::<Vec<_>>()
        };
        Documents { firsts: ids.chunks(context).flat_map(of_sample).collect(), context }
    }

    /// Returns the first row that each row sees, which is in its document and within `mask`.
    pub(super) fn seen(&self, mask: Mask<'_>) -> Vec<u32> {
        let reach = if let Mask::Window(rows) = mask { rows } else { self.context };
        let rows = self.firsts.iter().enumerate();
        rows.map(|(row, first)| {
            (row % self.context + 1).saturating_sub(reach).max(*first as usize) as u32
        })
        .collect()
    }

    /// Returns the position of each row in its document.
    pub(super) fn positions(&self) -> Vec<u32> {
        let rows = self.firsts.iter().enumerate();
        rows.map(|(row, first)| (row % self.context) as u32 - first).collect()
    }

    /// Returns the documents of the first `rows` rows of each sample.
    pub(super) fn up_to(&self, rows: usize) -> Documents {
        let of_samples = self.firsts.chunks(self.context).flat_map(|sample| &sample[..rows]);
        Documents { firsts: of_samples.copied().collect(), context: rows }
    }
}

/// Returns the rows of a position table at these `positions`, in order.
pub(super) fn rows_of<D: Device>(
    device: &D,
    table: &D::Tensor,
    positions: &[u32],
) -> Result<D::Tensor> {
    let runs = positions.chunk_by(|one, next| one + 1 == *next);
    let rows = runs.map(|run| device.rows(table, run[0] as usize, run.len()));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    device.join(&rows.iter().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_ends_with_its_token_or_its_sample() {
        let ids = [5, 9, 5, 5, 9, 9, 5, 5, 5, 5];
        let documents = Documents::of(&ids, 9, 5);
        assert_eq!(documents.firsts, [0, 0, 2, 2, 2, 0, 1, 1, 1, 1]);
        assert_eq!(documents.positions(), [0, 1, 0, 1, 2, 0, 0, 1, 2, 3]);
        assert_eq!(documents.seen(Mask::Causal), documents.firsts);
        assert_eq!(documents.seen(Mask::Window(2)), [0, 0, 2, 2, 3, 0, 1, 1, 2, 3]);
    }
}

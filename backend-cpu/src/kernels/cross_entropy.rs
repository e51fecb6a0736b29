//! Softmax cross-entropy, forward and backward in one pass over the logits, in place.

use candle_core::{Result, Tensor};
use chimera_core::layers::IGNORED;

use super::math::{exp_sum, max};
use super::memory::{Output, update};
use super::{Piece, rows_per_piece, run_all};

pub(crate) fn both(logits: Tensor, targets: &[u32], scale: f64) -> Result<(Tensor, Tensor)> {
    let width = logits.dims2()?.1;
    let n = rows_per_piece(width);
    let mut total = 0.0;
    update(&logits, |logits| {
        let mut losses = vec![0.0; targets.len().div_ceil(n)];
        let rows = logits.chunks_mut(n * width).zip(targets.chunks(n));
        let pieces = losses.iter_mut().zip(rows);
        run_all(pieces.map(|(loss, (logits, targets))| Rows {
            loss,
            logits,
            targets,
            width,
            scale: scale as f32,
        }));
        total = losses.iter().sum::<f64>() * scale;
        Ok(())
    })?;
    let mut loss = Output::new(1);
    loss.slots()[0].write(total as f32);
    // SAFETY: the one element was written.
    Ok((unsafe { loss.written(1)? }, logits))
}

/// Turns rows of logits into gradients and sums their losses.
struct Rows<'a> {
    loss: &'a mut f64,
    logits: &'a mut [f32],
    targets: &'a [u32],
    width: usize,
    scale: f32,
}

impl Piece for Rows<'_> {
    #[inline(always)]
    fn run(self) {
        for (row, &target) in self.logits.chunks_exact_mut(self.width).zip(self.targets) {
            if target == IGNORED {
                row.fill(0.0);
                continue;
            }
            let highest = max(row);
            let margin = f64::from(highest) - f64::from(row[target as usize]);
            let sum = exp_sum(row, 1.0, highest);
            *self.loss += margin + f64::from(sum).ln();
            let scale = self.scale / sum;
            row.iter_mut().for_each(|p| *p *= scale);
            row[target as usize] -= self.scale;
        }
    }
}

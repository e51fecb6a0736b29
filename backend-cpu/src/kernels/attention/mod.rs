//! Self-attention by blocks of queries. Only the scores of one block and head exist at once, and
//! the backward pass recomputes them from the log-sum-exp (Dao et al., 2022, FlashAttention).
//! Blocks of keys are not needed, since a row of scores fits the cache.
//!
//! Its products stay f32 when those of linear layers are rounded to bf16: heads and blocks are so
//! small that rounding and packing operands would take longer than it saves.

mod after;
mod backward;
mod forward;
mod head;
mod softmax;

use std::cell::Cell;

use candle_core::{Result, Tensor};
use chimera_core::layers::Attention;

pub(crate) use self::after::after;
use self::backward::HeadBackward;
use self::forward::HeadForward;
use self::head::Head;
use super::memory::{Output, values};
use super::run_all;

/// Queries per block. Fewer skip more of the scores that a causal mask hides; more make faster
/// matrix products.
const BLOCK: usize = 32;

thread_local! {
    /// Memory for one head, kept between calls.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

pub(crate) fn forward(qkv: &Tensor, by: &Attention<'_>) -> Result<(Tensor, Tensor)> {
    forward_from(qkv, 0, by)
}

/// Computes attention of the rows of each sample from `first` on, which see all rows before them.
pub(crate) fn forward_from(
    qkv: &Tensor,
    first: usize,
    by: &Attention<'_>,
) -> Result<(Tensor, Tensor)> {
    let (all_rows, width) = qkv.dims2()?;
    let rows = all_rows / by.context * (by.context - first);
    let hidden = by.hidden(width);
    let qkv = values(qkv)?;
    let mut out = Output::new(rows * hidden);
    let mut log_sum = Output::new(rows * by.heads);
    let places = (out.place(), log_sum.place());
    run_all((0..all_rows / by.context * by.heads).map(|part| HeadForward {
        head: Head::new(part, width, first, by),
        qkv: &qkv,
        out: places.0,
        log_sum: places.1,
    }));
    // SAFETY: the heads of all samples wrote all elements of both.
    unsafe { Ok((out.written((rows, hidden))?, log_sum.written((rows, by.heads))?)) }
}

pub(crate) fn backward(
    dy: &Tensor,
    qkv: &Tensor,
    out: &Tensor,
    log_sum: &Tensor,
    by: &Attention<'_>,
) -> Result<Tensor> {
    backward_from(dy, qkv, (out, log_sum), 0, by)
}

/// Computes the gradient of [`forward_from`] for all rows.
pub(crate) fn backward_from(
    dy: &Tensor,
    qkv: &Tensor,
    (out, log_sum): (&Tensor, &Tensor),
    first: usize,
    by: &Attention<'_>,
) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let (dy, qkv, out, log_sum) = (values(dy)?, values(qkv)?, values(out)?, values(log_sum)?);
    let mut d_qkv = Output::new(rows * width);
    let place = d_qkv.place();
    let group = by.heads / by.kv_heads;
    run_all((0..rows / by.context * by.kv_heads).map(|part| HeadBackward {
        first: Head::new(part * group, width, first, by),
        group,
        dy: &dy,
        qkv: &qkv,
        out: &out,
        log_sum: &log_sum,
        d_qkv: place,
    }));
    // SAFETY: the groups of heads of all samples wrote all elements.
    unsafe { d_qkv.written((rows, width)) }
}

/// Takes the scratch memory of this thread, at least `len` long.
fn scratch(len: usize) -> Vec<f32> {
    let mut scratch = SCRATCH.take();
    scratch.resize(len.max(scratch.len()), 0.0);
    scratch
}

//! Self-attention, row by row.

use std::ops::Range;

use crate::kernels::Mask;

use super::tensor::{Tensor, add, dot, log_sum_exp};

/// For each sample, head and row t: `out[t] = Σ p[u] v[u]` over the rows u that t sees, where
/// `p = exp(s - log_sum)`, `s[u] = q[t]·k[u] / √d` and `log_sum = log Σ exp s[u]`
pub(super) fn forward(
    qkv: &Tensor,
    heads: usize,
    context: usize,
    mask: Mask<'_>,
) -> (Tensor, Tensor) {
    let mut out = Tensor::zeros(&[qkv.n_rows(), qkv.width() / 3]);
    let mut log_sum = Tensor::zeros(&[qkv.n_rows(), heads]);
    for t in 0..qkv.n_rows() {
        for head in 0..heads {
            let [q, _, v] = parts(qkv, heads, head);
            let scores = scores(qkv, heads, head, t, seen(context, mask, t));
            let sum = log_sum_exp(scores.iter().map(|&(_, s)| s));
            for (u, s) in scores {
                let p = (s - sum).exp();
                add(&mut out.row_mut(t)[q.clone()], p, &qkv.row(u)[v.clone()]);
            }
            log_sum.row_mut(t)[head] = sum;
        }
    }
    (out, log_sum)
}

/// With `ds[u] = p[u] (dy[t]·v[u] - dy[t]·out[t]) / √d`:
/// `dq[t] = Σ ds[u] k[u]`, `dk[u] += ds[u] q[t]`, `dv[u] += p[u] dy[t]`
pub(super) fn backward(
    dy: &Tensor,
    qkv: &Tensor,
    out: &Tensor,
    log_sum: &Tensor,
    heads: usize,
    context: usize,
    mask: Mask<'_>,
) -> Tensor {
    let mut d_qkv = Tensor::zeros(&qkv.shape);
    for t in 0..qkv.n_rows() {
        for head in 0..heads {
            let [q, k, v] = parts(qkv, heads, head);
            let dy = &dy.row(t)[q.clone()];
            let dy_out = dot(dy, &out.row(t)[q.clone()]);
            for (u, s) in scores(qkv, heads, head, t, seen(context, mask, t)) {
                let p = (s - log_sum.row(t)[head]).exp();
                let dp = dot(dy, &qkv.row(u)[v.clone()]);
                let ds = p * (dp - dy_out) / (q.len() as f64).sqrt();
                add(&mut d_qkv.row_mut(t)[q.clone()], ds, &qkv.row(u)[k.clone()]);
                add(&mut d_qkv.row_mut(u)[k.clone()], ds, &qkv.row(t)[q.clone()]);
                add(&mut d_qkv.row_mut(u)[v.clone()], p, dy);
            }
        }
    }
    d_qkv
}

/// Where the query, key and value of a head lie in a row of `qkv`. The query's place is also that of
/// the head in a row of the result.
fn parts(qkv: &Tensor, heads: usize, head: usize) -> [Range<usize>; 3] {
    let hidden = qkv.width() / 3;
    let d = hidden / heads;
    [0, 1, 2].map(|part| part * hidden + head * d..part * hidden + (head + 1) * d)
}

/// The rows that row `t` sees, of its sample.
fn seen(context: usize, mask: Mask<'_>, t: usize) -> Range<usize> {
    let (sample, row) = (t / context, t % context);
    let first = sample * context;
    first..first + mask.n_keys(sample, row)
}

/// `(u, q[t]·k[u] / √d)` for the rows `u` that row `t` sees.
fn scores(
    qkv: &Tensor,
    heads: usize,
    head: usize,
    t: usize,
    seen: Range<usize>,
) -> Vec<(usize, f64)> {
    let [q, k, _] = parts(qkv, heads, head);
    let scale = 1.0 / (q.len() as f64).sqrt();
    let score = |u| scale * dot(&qkv.row(t)[q.clone()], &qkv.row(u)[k.clone()]);
    seen.map(|u| (u, score(u))).collect()
}

//! Self-attention, row by row.

use std::ops::Range;

use crate::device::reference::{Tensor, add, dot, log_sum_exp};
use crate::layers::Attention;

/// For each sample, head and row t: `out[t] = Σ p[u] v[u]` over the rows u that t sees, where
/// `p = f exp(s - log_sum)`, `s[u] = q[t]·k[u] / √d` and `log_sum = log Σ exp s[u]`; `f[u]` is the factor of the
/// dropout
pub(super) fn forward(qkv: &Tensor, by: &Attention<'_>) -> (Tensor, Tensor) {
    let mut out = Tensor::zeros(&[qkv.n_rows(), qkv.width() / 3]);
    let mut log_sum = Tensor::zeros(&[qkv.n_rows(), by.heads]);
    for t in 0..qkv.n_rows() {
        for head in 0..by.heads {
            let [q, _, v] = parts(qkv, by.heads, head);
            let scores = scores(qkv, by, head, t);
            let sum = log_sum_exp(scores.iter().map(|&(_, s)| s));
            for (key, (u, s)) in (0..).zip(scores) {
                let p = (s - sum).exp() * factor(by, t, head, key);
                add(&mut out.row_mut(t)[q.clone()], p, &qkv.row(u)[v.clone()]);
            }
            log_sum.row_mut(t)[head] = sum;
        }
    }
    (out, log_sum)
}

/// With `ds[u] = p[u] (f[u] dy[t]·v[u] - dy[t]·out[t]) / √d`, where `p` is without its factor:
/// `dq[t] = Σ ds[u] k[u]`, `dk[u] += ds[u] q[t]`, `dv[u] += f[u] p[u] dy[t]`
pub(super) fn backward(
    dy: &Tensor,
    qkv: &Tensor,
    out: &Tensor,
    log_sum: &Tensor,
    by: &Attention<'_>,
) -> Tensor {
    let mut d_qkv = Tensor::zeros(&qkv.shape);
    for t in 0..qkv.n_rows() {
        for head in 0..by.heads {
            let [q, k, v] = parts(qkv, by.heads, head);
            let dy = &dy.row(t)[q.clone()];
            let dy_out = dot(dy, &out.row(t)[q.clone()]);
            let scores = scores(qkv, by, head, t);
            for (key, (u, s)) in (0..).zip(scores) {
                let p = (s - log_sum.row(t)[head]).exp();
                let f = factor(by, t, head, key);
                let dp = f * dot(dy, &qkv.row(u)[v.clone()]);
                let ds = p * (dp - dy_out) / (q.len() as f64).sqrt();
                add(&mut d_qkv.row_mut(t)[q.clone()], ds, &qkv.row(u)[k.clone()]);
                add(&mut d_qkv.row_mut(u)[k.clone()], ds, &qkv.row(t)[q.clone()]);
                add(&mut d_qkv.row_mut(u)[v.clone()], f * p, dy);
            }
        }
    }
    d_qkv
}

/// What the weight of row `t` for a key of its sample is multiplied by.
fn factor(by: &Attention<'_>, t: usize, head: usize, key: u64) -> f64 {
    by.dropout.map_or(1.0, |dropout| dropout.factor(by.weight(t, head) + key))
}

/// Where the query, key and value of a head lie in a row of `qkv`. The query's place is also that of
/// the head in a row of the result.
fn parts(qkv: &Tensor, heads: usize, head: usize) -> [Range<usize>; 3] {
    let hidden = qkv.width() / 3;
    let d = hidden / heads;
    [0, 1, 2].map(|part| part * hidden + head * d..part * hidden + (head + 1) * d)
}

/// `(u, q[t]·k[u] / √d)` for the rows `u` of its sample that row `t` sees.
fn scores(qkv: &Tensor, by: &Attention<'_>, head: usize, t: usize) -> Vec<(usize, f64)> {
    let (sample, row) = (t / by.context, t % by.context);
    let start = sample * by.context;
    let [q, k, _] = parts(qkv, by.heads, head);
    let scale = 1.0 / (q.len() as f64).sqrt();
    let score = |u| scale * dot(&qkv.row(t)[q.clone()], &qkv.row(u)[k.clone()]);
    (start..start + by.mask.n_keys(sample, row)).map(|u| (u, score(u))).collect()
}

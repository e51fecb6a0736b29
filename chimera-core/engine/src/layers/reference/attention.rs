//! Self-attention, row by row.

use std::ops::Range;

use crate::device::reference::{Tensor, add, dot, log_sum_exp};
use crate::layers::Attention;

/// For each sample, head and row t: `out[t] = Σ p[u] v[u]` over the rows u that t sees, where `p =
/// f exp(s - log_sum)`, `s[u] = q[t]·k[u] / √d` and `log_sum = log Σ exp s[u]`; `f[u]` is the
/// dropout factor
pub(super) fn forward(qkv: &Tensor, by: &Attention<'_>) -> (Tensor, Tensor) {
    let mut out = Tensor::zeros(&[qkv.n_rows(), by.hidden(qkv.width())]);
    let mut log_sum = Tensor::zeros(&[qkv.n_rows(), by.heads]);
    for t in 0..qkv.n_rows() {
        for head in 0..by.heads {
            let [q, _, v] = parts(qkv, by, head);
            let scores = scores(qkv, by, head, t);
            let sum = log_sum_exp(scores.iter().map(|&(_, s)| s));
            for (u, s) in scores {
                let p = (s - sum).exp() * factor(by, t, head, u);
                add(&mut out.row_mut(t)[q.clone()], p, &qkv.row(u)[v.clone()]);
            }
            log_sum.row_mut(t)[head] = sum;
        }
    }
    (out, log_sum)
}

/// With `ds[u] = p[u] (f[u] dy[t]·v[u] - dy[t]·out[t]) / √d`, where `p` is without its dropout
/// factor: `dq[t] = Σ ds[u] k[u]`, `dk[u] += ds[u] q[t]`, `dv[u] += f[u] p[u] dy[t]`
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
            let [q, k, v] = parts(qkv, by, head);
            let dy = &dy.row(t)[q.clone()];
            let dy_out = dot(dy, &out.row(t)[q.clone()]);
            let scores = scores(qkv, by, head, t);
            for (u, s) in scores {
                let p = (s - log_sum.row(t)[head]).exp();
                let f = factor(by, t, head, u);
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

/// The dropout factor of the weight that row `t` gives row `u` of its sample.
fn factor(by: &Attention<'_>, t: usize, head: usize, u: usize) -> f64 {
    let key = (u % by.context) as u64;
    by.dropout.map_or(1.0, |dropout| dropout.factor(by.weight(t, head) + key))
}

/// The ranges of a query head's query, key and value in a row of `qkv`. The range of the query is
/// also that of the head in a row of the result.
fn parts(qkv: &Tensor, by: &Attention<'_>, head: usize) -> [Range<usize>; 3] {
    let d = by.head_dim(qkv.width());
    let shared = head / (by.heads / by.kv_heads);
    let firsts = [head, by.heads + shared, by.heads + by.kv_heads + shared];
    firsts.map(|first| first * d..(first + 1) * d)
}

/// `(u, q[t]·k[u] / √d)` for each row `u` that row `t` sees.
fn scores(qkv: &Tensor, by: &Attention<'_>, head: usize, t: usize) -> Vec<(usize, f64)> {
    let (sample, row) = (t / by.context, t % by.context);
    let start = sample * by.context;
    let [q, k, _] = parts(qkv, by, head);
    let scale = 1.0 / (q.len() as f64).sqrt();
    let score = |u| scale * dot(&qkv.row(t)[q.clone()], &qkv.row(u)[k.clone()]);
    by.keys(sample, row).map(|key| (start + key, score(start + key))).collect()
}

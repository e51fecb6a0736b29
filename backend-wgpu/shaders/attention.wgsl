// Self-attention. The scores are made four at a time and never stored (Dao et al., 2022,
// FlashAttention); the backward pass makes them again from the log-sum-exp, once for the queries and once
// for the keys and values, so that each sum has one owner.
//
// QUERIES: invocations of a workgroup, one query or key each. DIM: features of a head. TILE: rows that are
// kept in workgroup memory at once, a multiple of 4, or 0 to read them where they lie.
//
// A workgroup goes through the rows that any of its invocations needs, four at a time; those that one of them
// must not see weigh nothing there.

const LOWEST = -3.0e38;

struct By {
    heads: u32, context: u32, scale: f32,
    /// Whether rows see those up to themselves; else all see the first of their sample, as many as it is long.
    is_causal: u32,
    /// Which weights are dropped, as a function of their numbers: none with a threshold of 0.
    key: array<u32, 2>, first: array<u32, 2>, threshold: u32, kept: f32,
}

/// What the weight of a row's head for a key of its sample is multiplied by.
fn factor(by: By, row_and_head: u32, key: u32) -> f32 {
    if by.threshold == 0u {
        return 1.0;
    }
    let first = plus(vec2(by.first[0], by.first[1]), times(row_and_head, by.context));
    let word = threefry(vec2(by.key[0], by.key[1]), plus(first, vec2(key, 0u)));
    return select(0.0, by.kept, word >= by.threshold);
}

/// Those of one row for four keys.
fn of_keys(by: By, row_and_head: u32, keys: vec4<u32>) -> vec4<f32> {
    return vec4(
        factor(by, row_and_head, keys.x), factor(by, row_and_head, keys.y),
        factor(by, row_and_head, keys.z), factor(by, row_and_head, keys.w),
    );
}

/// Those of four rows for one key.
fn of_rows(by: By, rows_and_head: vec4<u32>, key: u32) -> vec4<f32> {
    return vec4(
        factor(by, rows_and_head.x, key), factor(by, rows_and_head.y, key),
        factor(by, rows_and_head.z, key), factor(by, rows_and_head.w, key),
    );
}

/// One head of one sample.
struct Head {
    /// The first row of the sample.
    row: u32,
    head: u32,
    hidden: u32,
}

fn head_of(group: vec3<u32>, by: By) -> Head {
    return Head(group.z * by.context, group.y, by.heads * DIM);
}

/// Where the query (part 0), key (1) or value (2) of a row of the sample begins.
fn qkv_of(head: Head, row: u32, part: u32) -> u32 {
    return ((head.row + row) * 3u + part) * head.hidden + head.head * DIM;
}

/// Where a row begins in a matrix that has all heads side by side.
fn mixed_of(head: Head, row: u32) -> u32 {
    return (head.row + row) * head.hidden + head.head * DIM;
}

const TILE_ELEMENTS = max(TILE, 1u) * DIM;
var<workgroup> tile_1: array<f32, TILE_ELEMENTS>;
var<workgroup> tile_2: array<f32, TILE_ELEMENTS>;

/// Where four rows begin in a tile.
fn in_tile(rows: vec4<u32>) -> vec4<u32> {
    return rows % max(TILE, 1u) * DIM;
}

fn four_of_tile_1(at: vec4<u32>) -> vec4<f32> {
    return vec4(tile_1[at.x], tile_1[at.y], tile_1[at.z], tile_1[at.w]);
}

fn four_of_tile_2(at: vec4<u32>) -> vec4<f32> {
    return vec4(tile_2[at.x], tile_2[at.y], tile_2[at.z], tile_2[at.w]);
}

struct Forward { out_at: u32, log_sum_at: u32, qkv_at: u32, lengths_at: u32, by: By }

var<immediate> forward_by: Forward;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read_write> log_sum: array<f32>;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> lengths: array<u32>;

fn four_of_qkv(at: vec4<u32>) -> vec4<f32> {
    return vec4(qkv[at.x], qkv[at.y], qkv[at.z], qkv[at.w]);
}

/// Where four rows of a part of `qkv` begin.
fn in_qkv(from_at: u32, head: Head, rows: vec4<u32>, part: u32) -> vec4<u32> {
    let first = from_at + qkv_of(head, 0u, part);
    return vec4(first) + rows * 3u * head.hidden;
}

@compute @workgroup_size(QUERIES)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = forward_by.by;
    let head = head_of(group, by);
    let wanted = group.x * QUERIES + invocation;
    let t = min(wanted, by.context - 1u);
    var end = min((group.x + 1u) * QUERIES, by.context);
    var n_keys = t + 1u;
    if by.is_causal == 0u {
        end = lengths[forward_by.lengths_at + group.z];
        n_keys = end;
    }
    let q_at = forward_by.qkv_at + qkv_of(head, t, 0u);
    let of_row = (head.row + t) * by.heads + head.head;
    var mixed: array<f32, DIM>;
    for (var i = 0u; i < DIM; i++) {
        mixed[i] = 0.0;
    }
    var largest = LOWEST;
    var sum = 0.0;
    for (var u = 0u; u < end; u += 4u) {
        if TILE > 0u && u % max(TILE, 1u) == 0u {
            workgroupBarrier();
            for (var e = invocation; e < TILE_ELEMENTS; e += QUERIES) {
                let row = min(u + e / DIM, by.context - 1u);
                tile_1[e] = qkv[forward_by.qkv_at + qkv_of(head, row, 1u) + e % DIM];
                tile_2[e] = qkv[forward_by.qkv_at + qkv_of(head, row, 2u) + e % DIM];
            }
            workgroupBarrier();
        }
        let keys = vec4(u, u + 1u, u + 2u, u + 3u);
        let inside = min(keys, vec4(by.context - 1u));
        let k_at = select(in_qkv(forward_by.qkv_at, head, inside, 1u), in_tile(keys), TILE > 0u);
        var s = vec4(0.0);
        for (var i = 0u; i < DIM; i++) {
            if TILE > 0u {
                s += qkv[q_at + i] * four_of_tile_1(k_at + i);
            } else {
                s += qkv[q_at + i] * four_of_qkv(k_at + i);
            }
        }
        let seen = keys < vec4(n_keys);
        s = select(vec4(LOWEST), s * by.scale, seen);
        let next = max(largest, max4(s));
        let rescale = exp1(largest - next);
        var p = select(vec4(0.0), exp4(s - next), seen);
        sum = sum * rescale + sum4(p);
        p *= of_keys(by, of_row, keys);
        largest = next;
        let v_at = select(in_qkv(forward_by.qkv_at, head, inside, 2u), in_tile(keys), TILE > 0u);
        for (var i = 0u; i < DIM; i++) {
            if TILE > 0u {
                mixed[i] = mixed[i] * rescale + dot(p, four_of_tile_2(v_at + i));
            } else {
                mixed[i] = mixed[i] * rescale + dot(p, four_of_qkv(v_at + i));
            }
        }
    }
    if wanted >= by.context {
        return;
    }
    let out_at = forward_by.out_at + mixed_of(head, t);
    for (var i = 0u; i < DIM; i++) {
        out[out_at + i] = mixed[i] / sum;
    }
    log_sum[forward_by.log_sum_at + of_row] = largest + log1(sum);
}

// The backward pass: with ds = p (f dy·v - dy·out) scale, where f is the factor of the dropout, dq = Σ ds k,
// dk = Σ ds q, dv = Σ f p dy.

struct Weigh { products_at: u32, dy_at: u32, out_at: u32, n: u32 }

var<immediate> weigh_by: Weigh;
@group(0) @binding(0) var<storage, read_write> products: array<f32>;
@group(0) @binding(1) var<storage, read> weigh_dy: array<f32>;
@group(0) @binding(2) var<storage, read> weigh_out: array<f32>;

/// dy·out of each row and head.
@compute @workgroup_size(QUERIES)
fn weigh(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let part = flat(group, groups) * QUERIES + invocation;
    if part >= weigh_by.n {
        return;
    }
    var sum = 0.0;
    for (var i = part * DIM; i < (part + 1u) * DIM; i++) {
        sum += weigh_dy[weigh_by.dy_at + i] * weigh_out[weigh_by.out_at + i];
    }
    products[weigh_by.products_at + part] = sum;
}

struct Backward {
    d_qkv_at: u32, qkv_at: u32, dy_at: u32, log_sum_at: u32, products_at: u32, lengths_at: u32,
    by: By,
}

var<immediate> backward_by: Backward;
@group(0) @binding(0) var<storage, read_write> d_qkv: array<f32>;
@group(0) @binding(1) var<storage, read> backward_qkv: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read> backward_log_sum: array<f32>;
@group(0) @binding(4) var<storage, read> backward_products: array<f32>;
@group(0) @binding(5) var<storage, read> backward_lengths: array<u32>;

fn four_of_backward_qkv(at: vec4<u32>) -> vec4<f32> {
    return vec4(backward_qkv[at.x], backward_qkv[at.y], backward_qkv[at.z], backward_qkv[at.w]);
}

fn four_of_dy(at: vec4<u32>) -> vec4<f32> {
    return vec4(dy[at.x], dy[at.y], dy[at.z], dy[at.w]);
}

@compute @workgroup_size(QUERIES)
fn backward_queries(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = backward_by.by;
    let from_qkv = backward_by.qkv_at;
    let head = head_of(group, by);
    let wanted = group.x * QUERIES + invocation;
    let t = min(wanted, by.context - 1u);
    var end = min((group.x + 1u) * QUERIES, by.context);
    var n_keys = t + 1u;
    if by.is_causal == 0u {
        end = backward_lengths[backward_by.lengths_at + group.z];
        n_keys = end;
    }
    let q_at = from_qkv + qkv_of(head, t, 0u);
    let dy_at = backward_by.dy_at + mixed_of(head, t);
    let of_row = (head.row + t) * by.heads + head.head;
    let log_sum_of_row = backward_log_sum[backward_by.log_sum_at + of_row];
    let product = backward_products[backward_by.products_at + of_row];
    var dq: array<f32, DIM>;
    for (var i = 0u; i < DIM; i++) {
        dq[i] = 0.0;
    }
    for (var u = 0u; u < end; u += 4u) {
        if TILE > 0u && u % max(TILE, 1u) == 0u {
            workgroupBarrier();
            for (var e = invocation; e < TILE_ELEMENTS; e += QUERIES) {
                let row = min(u + e / DIM, by.context - 1u);
                tile_1[e] = backward_qkv[from_qkv + qkv_of(head, row, 1u) + e % DIM];
                tile_2[e] = backward_qkv[from_qkv + qkv_of(head, row, 2u) + e % DIM];
            }
            workgroupBarrier();
        }
        let keys = vec4(u, u + 1u, u + 2u, u + 3u);
        let inside = min(keys, vec4(by.context - 1u));
        let k_at = select(in_qkv(from_qkv, head, inside, 1u), in_tile(keys), TILE > 0u);
        let v_at = select(in_qkv(from_qkv, head, inside, 2u), in_tile(keys), TILE > 0u);
        var s = vec4(0.0);
        var dp = vec4(0.0);
        for (var i = 0u; i < DIM; i++) {
            if TILE > 0u {
                s += backward_qkv[q_at + i] * four_of_tile_1(k_at + i);
                dp += dy[dy_at + i] * four_of_tile_2(v_at + i);
            } else {
                s += backward_qkv[q_at + i] * four_of_backward_qkv(k_at + i);
                dp += dy[dy_at + i] * four_of_backward_qkv(v_at + i);
            }
        }
        dp *= of_keys(by, of_row, keys);
        let p = exp4(s * by.scale - log_sum_of_row);
        let ds = select(vec4(0.0), p * (dp - product) * by.scale, keys < vec4(n_keys));
        for (var i = 0u; i < DIM; i++) {
            if TILE > 0u {
                dq[i] += dot(ds, four_of_tile_1(k_at + i));
            } else {
                dq[i] += dot(ds, four_of_backward_qkv(k_at + i));
            }
        }
    }
    if wanted >= by.context {
        return;
    }
    let to = backward_by.d_qkv_at + qkv_of(head, t, 0u);
    for (var i = 0u; i < DIM; i++) {
        d_qkv[to + i] = dq[i];
    }
}

@compute @workgroup_size(QUERIES)
fn backward_keys(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = backward_by.by;
    let from_qkv = backward_by.qkv_at;
    let head = head_of(group, by);
    let wanted = group.x * QUERIES + invocation;
    let u = min(wanted, by.context - 1u);
    let k_at = from_qkv + qkv_of(head, u, 1u);
    let v_at = from_qkv + qkv_of(head, u, 2u);
    var dk: array<f32, DIM>;
    var dv: array<f32, DIM>;
    for (var i = 0u; i < DIM; i++) {
        dk[i] = 0.0;
        dv[i] = 0.0;
    }
    // Which queries see this key: from this row on, if any; and the first of a workgroup's keys, in whole tiles.
    var from_row = u;
    var start = group.x * QUERIES / 4u * 4u;
    if TILE > 0u {
        start = start / max(TILE, 1u) * TILE;
    }
    if by.is_causal == 0u {
        from_row = select(by.context, 0u, u < backward_lengths[backward_by.lengths_at + group.z]);
        start = 0u;
    }
    for (var t = start; t < by.context; t += 4u) {
        if TILE > 0u && t % max(TILE, 1u) == 0u {
            workgroupBarrier();
            for (var e = invocation; e < TILE_ELEMENTS; e += QUERIES) {
                let row = min(t + e / DIM, by.context - 1u);
                tile_1[e] = backward_qkv[from_qkv + qkv_of(head, row, 0u) + e % DIM];
                tile_2[e] = dy[backward_by.dy_at + mixed_of(head, row) + e % DIM];
            }
            workgroupBarrier();
        }
        let queries = vec4(t, t + 1u, t + 2u, t + 3u);
        let inside = min(queries, vec4(by.context - 1u));
        let q_at = select(in_qkv(from_qkv, head, inside, 0u), in_tile(queries), TILE > 0u);
        let dy_rows = vec4(backward_by.dy_at + mixed_of(head, 0u)) + inside * head.hidden;
        let dy_at = select(dy_rows, in_tile(queries), TILE > 0u);
        var s = vec4(0.0);
        var dp = vec4(0.0);
        for (var i = 0u; i < DIM; i++) {
            if TILE > 0u {
                s += backward_qkv[k_at + i] * four_of_tile_1(q_at + i);
                dp += backward_qkv[v_at + i] * four_of_tile_2(dy_at + i);
            } else {
                s += backward_qkv[k_at + i] * four_of_backward_qkv(q_at + i);
                dp += backward_qkv[v_at + i] * four_of_dy(dy_at + i);
            }
        }
        let rows = (vec4(head.row) + inside) * by.heads + head.head;
        var log_sums = vec4(0.0);
        var weights = vec4(0.0);
        for (var j = 0u; j < 4u; j++) {
            log_sums[j] = backward_log_sum[backward_by.log_sum_at + rows[j]];
            weights[j] = backward_products[backward_by.products_at + rows[j]];
        }
        let sees = (queries >= vec4(from_row)) & (queries < vec4(by.context));
        let p = select(vec4(0.0), exp4(s * by.scale - log_sums), sees);
        let kept = of_rows(by, rows, u);
        let ds = select(vec4(0.0), p * (kept * dp - weights) * by.scale, sees);
        for (var i = 0u; i < DIM; i++) {
            if TILE > 0u {
                dk[i] += dot(ds, four_of_tile_1(q_at + i));
                dv[i] += dot(kept * p, four_of_tile_2(dy_at + i));
            } else {
                dk[i] += dot(ds, four_of_backward_qkv(q_at + i));
                dv[i] += dot(kept * p, four_of_dy(dy_at + i));
            }
        }
    }
    if wanted >= by.context {
        return;
    }
    let to_k = backward_by.d_qkv_at + qkv_of(head, u, 1u);
    let to_v = backward_by.d_qkv_at + qkv_of(head, u, 2u);
    for (var i = 0u; i < DIM; i++) {
        d_qkv[to_k + i] = dk[i];
        d_qkv[to_v + i] = dv[i];
    }
}

// The backward pass of self-attention: with ds = p (f dy·v - dy·out) scale, where f is the factor of the dropout,
// dq = Σ ds k, dk = Σ ds q, dv = Σ f p dy.

struct Weigh { products_at: u32, dy_at: u32, out_at: u32, n: u32 }

var<immediate> weigh_by: Weigh;
@group(0) @binding(0) var<storage, read_write> products_out: array<f32>;
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
    products_out[weigh_by.products_at + part] = sum;
}

struct Backward {
    d_qkv_at: u32, qkv_at: u32, dy_at: u32, log_sum_at: u32, products_at: u32, seen_at: u32,
    by: By,
}

var<immediate> call: Backward;
@group(0) @binding(0) var<storage, read_write> d_qkv: array<f32>;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read> log_sum: array<f32>;
@group(0) @binding(4) var<storage, read> products: array<f32>;
@group(0) @binding(5) var<storage, read> seen: array<u32>;

fn dy_feature(at: u32, i: u32) -> f32 {
    if i >= DIM {
        return 0.0;
    }
    return dy[at + i];
}

fn dy_quad(at: u32, quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    return vec4(
        dy_feature(at, i), dy_feature(at, i + 1u), dy_feature(at, i + 2u), dy_feature(at, i + 3u),
    );
}

fn store(at: u32, i: u32, x: f32) {
    if i < DIM {
        d_qkv[at + i] = x;
    }
}

@compute @workgroup_size(QUERIES)
fn backward_queries(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = call.by;
    let head = head_of(by, group.z, group.y);
    let wanted = group.x * QUERIES + invocation;
    let t = min(wanted, by.context - 1u);
    let keys_seen = keys_of(by, head, group.x * QUERIES, t);
    let q_at = call.qkv_at + qkv_of(head, t, head.q);
    let dy_at = call.dy_at + mixed_of(head, t);
    let of_row = (head.row + t) * by.heads + head.head;
    let log_sum_of_row = log_sum[call.log_sum_at + of_row];
    let product = products[call.products_at + of_row];
    var q: array<vec4<f32>, QUADS>;
    var dy: array<vec4<f32>, QUADS>;
    var dq: array<vec4<f32>, QUADS>;
    // repeat i QUADS
    q[{i}] = qkv_quad(q_at, {i});
    dy[{i}] = dy_quad(dy_at, {i});
    dq[{i}] = vec4(0.0);
    // end
    for (var u = keys_seen.start; u < keys_seen.stop; u += 4u) {
        if TILE > 0u && u % max(TILE, 1u) == 0u {
            bring_keys(call.qkv_at, head, by.context, u, invocation);
        }
        let keys = vec4(u, u + 1u, u + 2u, u + 3u);
        let inside = min(keys, vec4(by.context - 1u));
        let k_at = select(in_qkv(call.qkv_at, head, inside, head.k), in_tile(keys), TILE > 0u);
        let v_at = select(in_qkv(call.qkv_at, head, inside, head.v), in_tile(keys), TILE > 0u);
        var s = vec4(0.0);
        var dp = vec4(0.0);
        // repeat i QUADS
        s += dots_1(q[{i}], k_at, {i});
        dp += dots_2(dy[{i}], v_at, {i});
        // end
        dp *= of_keys(by, of_row, keys);
        let p = exp4(s * by.scale - log_sum_of_row);
        let ds = select(vec4(0.0), p * (dp - product) * by.scale, is_seen(keys_seen, keys));
        // repeat i QUADS
        dq[{i}] = add_1(dq[{i}], ds, k_at, {i});
        // end
    }
    if wanted >= by.context {
        return;
    }
    let to = call.d_qkv_at + qkv_of(head, t, head.q);
    // repeat i QUADS
    store_quad(to, {i}, dq[{i}]);
    // end
}

/// Brings the queries and the gradients of the rows from `row` on.
fn bring_queries(head: Head, context: u32, row: u32, invocation: u32) {
    workgroupBarrier();
    for (var e = invocation; e < TILE_VECTORS; e += QUERIES) {
        let inside = min(row + e / QUADS, context - 1u);
        tile_1[e] = qkv_quad(call.qkv_at + qkv_of(head, inside, head.q), e % QUADS);
        tile_2[e] = dy_quad(call.dy_at + mixed_of(head, inside), e % QUADS);
    }
    workgroupBarrier();
}

/// A vector of the second tile, or where there are no tiles of `dy`.
fn dy_2(at: u32, quad: u32) -> vec4<f32> {
    if TILE > 0u {
        return tile_2[at + quad];
    }
    return dy_quad(at, quad);
}

/// Four queries, and what the backward pass knows of them.
struct Queries {
    q_at: vec4<u32>, dy_at: vec4<u32>,
    /// Row and head in matrices of one number for each.
    numbers: vec4<u32>,
    log_sums: vec4<f32>,
    sees: vec4<bool>,
}

fn queries_of(by: By, head: Head, rows_seen: Seen, t: u32) -> Queries {
    let rows = vec4(t, t + 1u, t + 2u, t + 3u);
    let inside = min(rows, vec4(by.context - 1u));
    let dy_rows = vec4(call.dy_at + mixed_of(head, 0u)) + inside * head.hidden;
    let numbers = (vec4(head.row) + inside) * by.heads + head.head;
    let at = vec4(call.log_sum_at) + numbers;
    return Queries(
        select(in_qkv(call.qkv_at, head, inside, head.q), in_tile(rows), TILE > 0u),
        select(dy_rows, in_tile(rows), TILE > 0u),
        numbers,
        vec4(log_sum[at.x], log_sum[at.y], log_sum[at.z], log_sum[at.w]),
        is_seen(rows_seen, rows),
    );
}

/// The weights of a key for four queries, of which the products are `s`.
fn weights_of(by: By, queries: Queries, s: vec4<f32>) -> vec4<f32> {
    return select(vec4(0.0), exp4(s * by.scale - queries.log_sums), queries.sees);
}

@compute @workgroup_size(QUERIES)
fn backward_keys(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = call.by;
    let n_heads = by.heads / by.kv_heads; // of queries, that share a key
    let first = head_of(by, group.z, group.y * n_heads);
    let wanted = group.x * QUERIES + invocation;
    let u = min(wanted, by.context - 1u);
    let k_at = call.qkv_at + qkv_of(first, u, first.k);
    let v_at = call.qkv_at + qkv_of(first, u, first.v);
    var k: array<vec4<f32>, QUADS>;
    var v: array<vec4<f32>, QUADS>;
    var dk: array<vec4<f32>, QUADS>;
    // repeat i QUADS
    k[{i}] = qkv_quad(k_at, {i});
    v[{i}] = qkv_quad(v_at, {i});
    dk[{i}] = vec4(0.0);
    // end
    let rows_seen = rows_of(by, first, group.x * QUERIES, u);
    for (var nth = 0u; nth < n_heads; nth++) {
        let head = head_of(by, group.z, first.head + nth);
        for (var t = rows_seen.start; t < rows_seen.stop; t += 4u) {
            if TILE > 0u && t % max(TILE, 1u) == 0u {
                bring_queries(head, by.context, t, invocation);
            }
            let queries = queries_of(by, head, rows_seen, t);
            var s = vec4(0.0);
            var dp = vec4(0.0);
            // repeat i QUADS
            s += dots_1(k[{i}], queries.q_at, {i});
            dp += vec4(
                dot(v[{i}], dy_2(queries.dy_at.x, {i})), dot(v[{i}], dy_2(queries.dy_at.y, {i})),
                dot(v[{i}], dy_2(queries.dy_at.z, {i})), dot(v[{i}], dy_2(queries.dy_at.w, {i})),
            );
            // end
            let p = weights_of(by, queries, s);
            let at = vec4(call.products_at) + queries.numbers;
            let means = vec4(products[at.x], products[at.y], products[at.z], products[at.w]);
            let kept = of_rows(by, queries.numbers, u);
            let ds = select(vec4(0.0), p * (kept * dp - means) * by.scale, queries.sees);
            // repeat i QUADS
            dk[{i}] = add_1(dk[{i}], ds, queries.q_at, {i});
            // end
        }
    }
    if wanted >= by.context {
        return;
    }
    let to = call.d_qkv_at + qkv_of(first, u, first.k);
    // repeat i QUADS
    store_quad(to, {i}, dk[{i}]);
    // end
}

@compute @workgroup_size(QUERIES)
fn backward_values(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = call.by;
    let n_heads = by.heads / by.kv_heads; // of queries, that share a key
    let first = head_of(by, group.z, group.y * n_heads);
    let wanted = group.x * QUERIES + invocation;
    let u = min(wanted, by.context - 1u);
    let k_at = call.qkv_at + qkv_of(first, u, first.k);
    var k: array<vec4<f32>, QUADS>;
    var dv: array<vec4<f32>, QUADS>;
    // repeat i QUADS
    k[{i}] = qkv_quad(k_at, {i});
    dv[{i}] = vec4(0.0);
    // end
    let rows_seen = rows_of(by, first, group.x * QUERIES, u);
    for (var nth = 0u; nth < n_heads; nth++) {
        let head = head_of(by, group.z, first.head + nth);
        for (var t = rows_seen.start; t < rows_seen.stop; t += 4u) {
            if TILE > 0u && t % max(TILE, 1u) == 0u {
                bring_queries(head, by.context, t, invocation);
            }
            let queries = queries_of(by, head, rows_seen, t);
            var s = vec4(0.0);
            // repeat i QUADS
            s += dots_1(k[{i}], queries.q_at, {i});
            // end
            let p = of_rows(by, queries.numbers, u) * weights_of(by, queries, s);
            // repeat i QUADS
            dv[{i}] = fma(vec4(p.x), dy_2(queries.dy_at.x, {i}), dv[{i}]);
            dv[{i}] = fma(vec4(p.y), dy_2(queries.dy_at.y, {i}), dv[{i}]);
            dv[{i}] = fma(vec4(p.z), dy_2(queries.dy_at.z, {i}), dv[{i}]);
            dv[{i}] = fma(vec4(p.w), dy_2(queries.dy_at.w, {i}), dv[{i}]);
            // end
        }
    }
    if wanted >= by.context {
        return;
    }
    let to = call.d_qkv_at + qkv_of(first, u, first.v);
    // repeat i QUADS
    store_quad(to, {i}, dv[{i}]);
    // end
}

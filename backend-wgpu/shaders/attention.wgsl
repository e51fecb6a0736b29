// Self-attention. The scores are made four at a time and never stored (Dao et al., 2022,
// FlashAttention); the backward pass makes them again from the log-sum-exp, once for the queries, once for the keys
// and once for the values, so that each sum has one owner, whose vectors stay in registers.
//
// QUERIES: invocations of a workgroup, one query or key each. DIM: features of a head; QUADS: in vectors of four, the
// last filled up with zeros. TILE: rows that are kept in workgroup memory at once, a multiple of 4, or 0 to read them
// where they lie.
//
// A workgroup goes through the rows that any of its invocations needs, four at a time; those that one of them
// must not see weigh nothing there. This file is what the forward and the backward pass share; each declares `qkv`,
// `seen`, and `store` for a feature of its result.

const LOWEST = -3.0e38;

struct By {
    heads: u32,
    /// Of keys and values: each serves as many heads of queries as the others.
    kv_heads: u32,
    context: u32, scale: f32,
    /// How many rows up to itself a row sees; with 0 `seen` says which.
    window: u32,
    /// Which weights are dropped, as a function of their numbers: none with a threshold of 0.
    key: array<u32, 2>, first: array<u32, 2>, threshold: u32, kept: f32,
}

/// What the weight of a row's head for a key of its sample is multiplied by.
fn factor(by: By, row_and_head: u32, key: u32) -> f32 {
    if by.threshold == 0u {
        return 1.0;
    }
    let first = plus(vec2(by.first[0], by.first[1]), times(row_and_head, by.context));
    let bits = random_bits(vec2(by.key[0], by.key[1]), plus(first, vec2(key, 0u)));
    return select(0.0, by.kept, bits >= by.threshold);
}

/// The factors of one row for four keys.
fn of_keys(by: By, row_and_head: u32, keys: vec4<u32>) -> vec4<f32> {
    return vec4(
        factor(by, row_and_head, keys.x), factor(by, row_and_head, keys.y),
        factor(by, row_and_head, keys.z), factor(by, row_and_head, keys.w),
    );
}

/// The factors of four rows for one key.
fn of_rows(by: By, rows_and_head: vec4<u32>, key: u32) -> vec4<f32> {
    return vec4(
        factor(by, rows_and_head.x, key), factor(by, rows_and_head.y, key),
        factor(by, rows_and_head.z, key), factor(by, rows_and_head.w, key),
    );
}

/// One head of queries of one sample, and the head of keys and values that it attends to.
struct Head {
    /// The first row of the sample.
    row: u32,
    head: u32,
    /// Features of all heads of queries, and of a row of queries, keys and values.
    hidden: u32, width: u32,
    /// Where the query, the key and the value lie in such a row.
    q: u32, k: u32, v: u32,
}

fn head_of(by: By, sample: u32, head: u32) -> Head {
    let hidden = by.heads * DIM;
    let k = hidden + head / (by.heads / by.kv_heads) * DIM;
    let kv_hidden = by.kv_heads * DIM;
    return Head(sample * by.context, head, hidden, hidden + 2u * kv_hidden, head * DIM, k, k + kv_hidden);
}

/// Where the query, key or value of a row of the sample begins, which is `part` of its head.
fn qkv_of(head: Head, row: u32, part: u32) -> u32 {
    return (head.row + row) * head.width + part;
}

/// Where a row begins in a matrix that has all heads side by side.
fn mixed_of(head: Head, row: u32) -> u32 {
    return (head.row + row) * head.hidden + head.head * DIM;
}

/// Rows `first .. end` that a row sees, or that see a key. A workgroup goes through `start .. stop`, which begins with a
/// whole tile.
struct Seen { first: u32, end: u32, start: u32, stop: u32 }

/// One of the four numbers of a row of the sample: the first key that it sees and the end of these, the first row that sees
/// it as a key and the end of these.
fn seen_number(head: Head, row: u32, which: u32) -> u32 {
    return seen[call.seen_at + 4u * (head.row + row) + which];
}

/// The keys (`which` 0) that a row sees, or the rows (2) that see a key, as the numbers say.
fn seen_listed(by: By, head: Head, own: u32, row: u32, which: u32) -> Seen {
    let last = min(own + QUERIES, by.context) - 1u;
    return Seen(
        seen_number(head, row, which), seen_number(head, row, which + 1u),
        whole_tiles(seen_number(head, own, which)), seen_number(head, last, which + 1u),
    );
}

/// The keys that a row sees. The rows of its workgroup begin at `own`.
fn keys_of(by: By, head: Head, own: u32, row: u32) -> Seen {
    if by.window == 0u {
        return seen_listed(by, head, own, row, 0u);
    }
    let start = max(own + 1u, by.window) - by.window;
    let stop = min(own + QUERIES, by.context);
    return Seen(max(row + 1u, by.window) - by.window, row + 1u, whole_tiles(start), stop);
}

/// The rows that see a key. The keys of its workgroup begin at `own`.
fn rows_of(by: By, head: Head, own: u32, key: u32) -> Seen {
    if by.window == 0u {
        return seen_listed(by, head, own, key, 2u);
    }
    let stop = min(own + QUERIES - 1u + by.window, by.context);
    return Seen(key, min(key + by.window, by.context), whole_tiles(own), stop);
}

fn whole_tiles(row: u32) -> u32 {
    let step = max(TILE, 4u);
    return row / step * step;
}

fn is_seen(seen: Seen, rows: vec4<u32>) -> vec4<bool> {
    return (rows >= vec4(seen.first)) & (rows < vec4(seen.end));
}

const TILE_VECTORS = max(TILE, 1u) * QUADS;
var<workgroup> tile_1: array<vec4<f32>, TILE_VECTORS>;
var<workgroup> tile_2: array<vec4<f32>, TILE_VECTORS>;

/// Where four rows begin in a tile.
fn in_tile(rows: vec4<u32>) -> vec4<u32> {
    return rows % max(TILE, 1u) * QUADS;
}

/// Where four rows of a part of `qkv` begin.
fn in_qkv(from_at: u32, head: Head, rows: vec4<u32>, part: u32) -> vec4<u32> {
    let first = from_at + qkv_of(head, 0u, part);
    return vec4(first) + rows * head.width;
}

fn qkv_feature(at: u32, i: u32) -> f32 {
    if i >= DIM {
        return 0.0;
    }
    return qkv[at + i];
}

/// A vector of features of what begins at `at`.
fn qkv_quad(at: u32, quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    return vec4(
        qkv_feature(at, i), qkv_feature(at, i + 1u), qkv_feature(at, i + 2u), qkv_feature(at, i + 3u),
    );
}

fn store_quad(at: u32, quad: u32, x: vec4<f32>) {
    store(at, 4u * quad, x.x);
    store(at, 4u * quad + 1u, x.y);
    store(at, 4u * quad + 2u, x.z);
    store(at, 4u * quad + 3u, x.w);
}

/// Brings the keys and values of the rows from `row` on.
fn bring_keys(from_at: u32, head: Head, context: u32, row: u32, invocation: u32) {
    workgroupBarrier();
    for (var e = invocation; e < TILE_VECTORS; e += QUERIES) {
        let inside = min(row + e / QUADS, context - 1u);
        tile_1[e] = qkv_quad(from_at + qkv_of(head, inside, head.k), e % QUADS);
        tile_2[e] = qkv_quad(from_at + qkv_of(head, inside, head.v), e % QUADS);
    }
    workgroupBarrier();
}

/// A vector of the first tile, or where there are no tiles of `qkv`.
fn quad_1(at: u32, quad: u32) -> vec4<f32> {
    if TILE > 0u {
        return tile_1[at + quad];
    }
    return qkv_quad(at, quad);
}

fn quad_2(at: u32, quad: u32) -> vec4<f32> {
    if TILE > 0u {
        return tile_2[at + quad];
    }
    return qkv_quad(at, quad);
}

/// What a vector adds to the products of its row with four others.
fn dots_1(x: vec4<f32>, rows_at: vec4<u32>, quad: u32) -> vec4<f32> {
    return vec4(
        dot(x, quad_1(rows_at.x, quad)), dot(x, quad_1(rows_at.y, quad)),
        dot(x, quad_1(rows_at.z, quad)), dot(x, quad_1(rows_at.w, quad)),
    );
}

fn dots_2(x: vec4<f32>, rows_at: vec4<u32>, quad: u32) -> vec4<f32> {
    return vec4(
        dot(x, quad_2(rows_at.x, quad)), dot(x, quad_2(rows_at.y, quad)),
        dot(x, quad_2(rows_at.z, quad)), dot(x, quad_2(rows_at.w, quad)),
    );
}

/// A vector plus those of four rows, weighted.
fn add_1(sum: vec4<f32>, weights: vec4<f32>, rows_at: vec4<u32>, quad: u32) -> vec4<f32> {
    var mixed = fma(vec4(weights.x), quad_1(rows_at.x, quad), sum);
    mixed = fma(vec4(weights.y), quad_1(rows_at.y, quad), mixed);
    mixed = fma(vec4(weights.z), quad_1(rows_at.z, quad), mixed);
    return fma(vec4(weights.w), quad_1(rows_at.w, quad), mixed);
}

fn add_2(sum: vec4<f32>, weights: vec4<f32>, rows_at: vec4<u32>, quad: u32) -> vec4<f32> {
    var mixed = fma(vec4(weights.x), quad_2(rows_at.x, quad), sum);
    mixed = fma(vec4(weights.y), quad_2(rows_at.y, quad), mixed);
    mixed = fma(vec4(weights.z), quad_2(rows_at.z, quad), mixed);
    return fma(vec4(weights.w), quad_2(rows_at.w, quad), mixed);
}

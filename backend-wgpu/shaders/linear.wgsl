// Matrix products: c = a b + bias + residual, or c += a b, with a or b transposed or neither.
//
// GROUP: invocations of a workgroup. A_ACROSS, B_ACROSS: 1 if the operand lies transposed. BLOCK: rows and
// columns per invocation of tiles.
//
// Whichever is chosen, an element is one chain of fused sums along k: all give the same bits.

struct By {
    c_at: u32, a_at: u32, b_at: u32, bias_at: u32, residual_at: u32,
    m: u32, n: u32, k: u32,
    /// Elements between rows as they lie in memory.
    c_step: u32, a_step: u32, b_step: u32,
    add: u32, has_bias: u32, has_residual: u32,
}

var<immediate> by: By;
@group(0) @binding(0) var<storage, read_write> c: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> residual: array<f32>;

fn store(row: u32, column: u32, product: f32) {
    if row >= by.m || column >= by.n {
        return;
    }
    let at = row * by.c_step + column;
    var element = product;
    if by.add != 0u {
        element += c[by.c_at + at];
    }
    if by.has_bias != 0u {
        element += bias[by.bias_at + column];
    }
    if by.has_residual != 0u {
        element += residual[by.residual_at + at];
    }
    c[by.c_at + at] = element;
}

// In registers: 4 x 8 elements per invocation; its columns lie GROUP apart.

fn store8(row: u32, column: u32, left: vec4<f32>, right: vec4<f32>) {
    store(row, column, left.x);
    store(row, column + GROUP, left.y);
    store(row, column + 2u * GROUP, left.z);
    store(row, column + 3u * GROUP, left.w);
    store(row, column + 4u * GROUP, right.x);
    store(row, column + 5u * GROUP, right.y);
    store(row, column + 6u * GROUP, right.z);
    store(row, column + 7u * GROUP, right.w);
}

@compute @workgroup_size(GROUP)
fn registers(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // Rows and columns beyond the edge are computed from the last and not stored.
    let column = group.x * 8u * GROUP + lane;
    let row = group.y * 4u;
    let rows = min(vec4(row) + vec4(0u, 1u, 2u, 3u), vec4(by.m - 1u));
    let spread = vec4(0u, GROUP, 2u * GROUP, 3u * GROUP);
    let columns0 = min(vec4(column) + spread, vec4(by.n - 1u));
    let columns1 = min(vec4(column + 4u * GROUP) + spread, vec4(by.n - 1u));

    let a_row = select(by.a_step, 1u, A_ACROSS == 1u);
    let a_next = select(1u, by.a_step, A_ACROSS == 1u);
    let b_column = select(1u, by.b_step, B_ACROSS == 1u);
    let b_next = select(by.b_step, 1u, B_ACROSS == 1u);
    var at_a = vec4(by.a_at) + rows * a_row;
    var at_b0 = vec4(by.b_at) + columns0 * b_column;
    var at_b1 = vec4(by.b_at) + columns1 * b_column;

    var c00 = vec4(0.0);
    var c01 = vec4(0.0);
    var c10 = vec4(0.0);
    var c11 = vec4(0.0);
    var c20 = vec4(0.0);
    var c21 = vec4(0.0);
    var c30 = vec4(0.0);
    var c31 = vec4(0.0);
    for (var k = 0u; k < by.k; k++) {
        let left = vec4(a[at_a.x], a[at_a.y], a[at_a.z], a[at_a.w]);
        let b0 = vec4(b[at_b0.x], b[at_b0.y], b[at_b0.z], b[at_b0.w]);
        let b1 = vec4(b[at_b1.x], b[at_b1.y], b[at_b1.z], b[at_b1.w]);
        c00 = fma(vec4(left.x), b0, c00);
        c01 = fma(vec4(left.x), b1, c01);
        c10 = fma(vec4(left.y), b0, c10);
        c11 = fma(vec4(left.y), b1, c11);
        c20 = fma(vec4(left.z), b0, c20);
        c21 = fma(vec4(left.z), b1, c21);
        c30 = fma(vec4(left.w), b0, c30);
        c31 = fma(vec4(left.w), b1, c31);
        at_a += vec4(a_next);
        at_b0 += vec4(b_next);
        at_b1 += vec4(b_next);
    }
    store8(row, column, c00, c01);
    store8(row + 1u, column, c10, c11);
    store8(row + 2u, column, c20, c21);
    store8(row + 3u, column, c30, c31);
}

// In tiles of workgroup memory: 16 x 16 invocations with BLOCK x BLOCK elements each.

const TILE = 16u * BLOCK;
const DEPTH = 16u;
const QUADS = BLOCK / 4u;

var<workgroup> a_tile: array<vec4<f32>, DEPTH * TILE / 4>;
var<workgroup> b_tile: array<vec4<f32>, DEPTH * TILE / 4>;

fn a_element(row: u32, k: u32) -> f32 {
    if row >= by.m || k >= by.k {
        return 0.0;
    }
    return a[by.a_at + select(row * by.a_step + k, k * by.a_step + row, A_ACROSS == 1u)];
}

fn b_element(k: u32, column: u32) -> f32 {
    if column >= by.n || k >= by.k {
        return 0.0;
    }
    return b[by.b_at + select(k * by.b_step + column, column * by.b_step + k, B_ACROSS == 1u)];
}

@compute @workgroup_size(256)
fn tiles(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let row = group.y * TILE;
    let column = group.x * TILE;
    // Each invocation brings BLOCK elements of each tile; neighbours bring neighbours in memory.
    let across = vec2(invocation % TILE, invocation / TILE * BLOCK);
    let along = vec2(invocation / DEPTH * BLOCK, invocation % DEPTH);
    let from_a = select(along, across, A_ACROSS == 1u);
    let from_b = select(across, along, B_ACROSS == 1u);
    let place = vec2(invocation % 16u, invocation / 16u);

    var sums: array<vec4<f32>, BLOCK * QUADS>;
    for (var start = 0u; start < by.k; start += DEPTH) {
        for (var i = 0u; i < BLOCK; i++) {
            let at_a = from_a + select(vec2(i, 0u), vec2(0u, i), A_ACROSS == 1u);
            let at_b = from_b + select(vec2(0u, i), vec2(i, 0u), B_ACROSS == 1u);
            a_tile[(at_a.y * TILE + at_a.x) / 4u][at_a.x % 4u] = a_element(row + at_a.x, start + at_a.y);
            b_tile[(at_b.y * TILE + at_b.x) / 4u][at_b.x % 4u] = b_element(start + at_b.y, column + at_b.x);
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let at_a = k * TILE / 4u + place.y * QUADS;
            let at_b = k * TILE / 4u + place.x * QUADS;
            var right: array<vec4<f32>, QUADS>;
            for (var q = 0u; q < QUADS; q++) {
                right[q] = b_tile[at_b + q];
            }
            for (var p = 0u; p < QUADS; p++) {
                let left = a_tile[at_a + p];
                let at = 4u * p * QUADS;
                for (var q = 0u; q < QUADS; q++) {
                    sums[at + q] = fma(vec4(left.x), right[q], sums[at + q]);
                    sums[at + QUADS + q] = fma(vec4(left.y), right[q], sums[at + QUADS + q]);
                    sums[at + 2u * QUADS + q] = fma(vec4(left.z), right[q], sums[at + 2u * QUADS + q]);
                    sums[at + 3u * QUADS + q] = fma(vec4(left.w), right[q], sums[at + 3u * QUADS + q]);
                }
            }
        }
        workgroupBarrier();
    }
    let to = vec2(column, row) + place * BLOCK;
    for (var i = 0u; i < BLOCK; i++) {
        for (var j = 0u; j < BLOCK; j++) {
            store(to.y + i, to.x + j, sums[i * QUADS + j / 4u][j % 4u]);
        }
    }
}

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

// In tiles of workgroup memory: 16 x 16 invocations, each with squares of 4 x 4 elements, BLOCK / 4 in a row and
// in a column, that lie 64 apart.
//
// A tile has DEPTH lines along k, each of TILE elements of a's rows or b's columns. Lines are one vector longer than
// that, so that vectors one below the other lie in different banks. Vectors of workgroup memory are written whole:
// a write to one component may touch the others, which belong to other invocations.

const TILE = 16u * BLOCK;
const DEPTH = 16u;
const LINE = TILE / 4u + 1u;

var<workgroup> a_tile: array<vec4<f32>, DEPTH * LINE>;
var<workgroup> b_tile: array<vec4<f32>, DEPTH * LINE>;

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

/// The vector of a tile (x) and its line (y) that an invocation brings: neighbours bring neighbours in memory.
fn brought(number: u32, lies_along_k: bool) -> vec2<u32> {
    const VECTORS = TILE / 4u;
    return select(
        vec2(number % VECTORS, number / VECTORS), vec2(number / DEPTH, number % DEPTH), lies_along_k,
    );
}

fn bring(number: u32, row: u32, column: u32, start: u32) {
    let a_at = brought(number, A_ACROSS == 0u);
    let i = row + 4u * a_at.x;
    let a_k = start + a_at.y;
    a_tile[a_at.y * LINE + a_at.x] = vec4(
        a_element(i, a_k), a_element(i + 1u, a_k), a_element(i + 2u, a_k), a_element(i + 3u, a_k),
    );
    let b_at = brought(number, B_ACROSS == 1u);
    let j = column + 4u * b_at.x;
    let b_k = start + b_at.y;
    b_tile[b_at.y * LINE + b_at.x] = vec4(
        b_element(b_k, j), b_element(b_k, j + 1u), b_element(b_k, j + 2u), b_element(b_k, j + 3u),
    );
}

/// The rows of 4 x 4 elements.
struct Square { r0: vec4<f32>, r1: vec4<f32>, r2: vec4<f32>, r3: vec4<f32> }

fn add_outer(sums: ptr<function, Square>, left: vec4<f32>, right: vec4<f32>) {
    (*sums).r0 = fma(vec4(left.x), right, (*sums).r0);
    (*sums).r1 = fma(vec4(left.y), right, (*sums).r1);
    (*sums).r2 = fma(vec4(left.z), right, (*sums).r2);
    (*sums).r3 = fma(vec4(left.w), right, (*sums).r3);
}

fn store_square(row: u32, column: u32, sums: Square) {
    store_four(row, column, sums.r0);
    store_four(row + 1u, column, sums.r1);
    store_four(row + 2u, column, sums.r2);
    store_four(row + 3u, column, sums.r3);
}

fn store_four(row: u32, column: u32, sums: vec4<f32>) {
    store(row, column, sums.x);
    store(row, column + 1u, sums.y);
    store(row, column + 2u, sums.z);
    store(row, column + 3u, sums.w);
}

@compute @workgroup_size(256)
fn tiles(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let row = group.y * TILE;
    let column = group.x * TILE;
    let place = vec2(invocation % 16u, invocation / 16u);
    var sums00 = Square();
    var sums01 = Square();
    var sums10 = Square();
    var sums11 = Square();
    for (var start = 0u; start < by.k; start += DEPTH) {
        bring(invocation, row, column, start);
        if BLOCK == 8u {
            bring(invocation + 256u, row, column, start);
        }
        workgroupBarrier();
        for (var line = 0u; line < DEPTH * LINE; line += 4u * LINE) {
            // repeat k 4
            {
                let left = a_tile[line + {k} * LINE + place.y];
                let right = b_tile[line + {k} * LINE + place.x];
                add_outer(&sums00, left, right);
                if BLOCK == 8u {
                    let lower = a_tile[line + {k} * LINE + place.y + 16u];
                    let farther = b_tile[line + {k} * LINE + place.x + 16u];
                    add_outer(&sums01, left, farther);
                    add_outer(&sums10, lower, right);
                    add_outer(&sums11, lower, farther);
                }
            }
            // end
        }
        workgroupBarrier();
    }
    let at = vec2(column, row) + 4u * place;
    store_square(at.y, at.x, sums00);
    if BLOCK == 8u {
        store_square(at.y, at.x + 64u, sums01);
        store_square(at.y + 64u, at.x, sums10);
        store_square(at.y + 64u, at.x + 64u, sums11);
    }
}

// With subgroups of 8, for processors that play a GPU: 32 x 4 elements per invocation, whose columns lie 8 apart.
//
// Such a processor reads memory one invocation at a time, so reads cost more than products. Each invocation
// reads four elements of a's column, 8 rows apart, and the others of its subgroup hand it theirs: 8 reads per
// 128 products.

struct Eight {
    r0: vec4<f32>, r1: vec4<f32>, r2: vec4<f32>, r3: vec4<f32>,
    r4: vec4<f32>, r5: vec4<f32>, r6: vec4<f32>, r7: vec4<f32>,
}

/// Eight rows of a product, of which this invocation has one element of `a` and four of `b`.
fn add8(sums: ptr<function, Eight>, mine: f32, right: vec4<f32>) {
    (*sums).r0 = fma(vec4(subgroupBroadcast(mine, 0u)), right, (*sums).r0);
    (*sums).r1 = fma(vec4(subgroupBroadcast(mine, 1u)), right, (*sums).r1);
    (*sums).r2 = fma(vec4(subgroupBroadcast(mine, 2u)), right, (*sums).r2);
    (*sums).r3 = fma(vec4(subgroupBroadcast(mine, 3u)), right, (*sums).r3);
    (*sums).r4 = fma(vec4(subgroupBroadcast(mine, 4u)), right, (*sums).r4);
    (*sums).r5 = fma(vec4(subgroupBroadcast(mine, 5u)), right, (*sums).r5);
    (*sums).r6 = fma(vec4(subgroupBroadcast(mine, 6u)), right, (*sums).r6);
    (*sums).r7 = fma(vec4(subgroupBroadcast(mine, 7u)), right, (*sums).r7);
}

fn store4(row: u32, column: u32, sums: vec4<f32>) {
    store(row, column, sums.x);
    store(row, column + 8u, sums.y);
    store(row, column + 16u, sums.z);
    store(row, column + 24u, sums.w);
}

fn store_eight(row: u32, column: u32, sums: Eight) {
    store4(row + 0u, column, sums.r0);
    store4(row + 1u, column, sums.r1);
    store4(row + 2u, column, sums.r2);
    store4(row + 3u, column, sums.r3);
    store4(row + 4u, column, sums.r4);
    store4(row + 5u, column, sums.r5);
    store4(row + 6u, column, sums.r6);
    store4(row + 7u, column, sums.r7);
}

@compute @workgroup_size(8)
fn subgroups(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    // Rows and columns beyond the edge are computed from the last and not stored.
    let row = group.y * 32u;
    let column = group.x * 32u + lane;
    let rows = min(vec4(row + lane) + vec4(0u, 8u, 16u, 24u), vec4(by.m - 1u));
    let columns = min(vec4(column) + vec4(0u, 8u, 16u, 24u), vec4(by.n - 1u));
    let a_row = select(by.a_step, 1u, A_ACROSS == 1u);
    let a_next = select(1u, by.a_step, A_ACROSS == 1u);
    let b_column = select(1u, by.b_step, B_ACROSS == 1u);
    let b_next = select(by.b_step, 1u, B_ACROSS == 1u);
    var at_a = vec4(by.a_at) + rows * a_row;
    var at_b = vec4(by.b_at) + columns * b_column;

    var sums0 = Eight();
    var sums1 = Eight();
    var sums2 = Eight();
    var sums3 = Eight();
    for (var k = 0u; k < by.k; k++) {
        let right = vec4(b[at_b.x], b[at_b.y], b[at_b.z], b[at_b.w]);
        add8(&sums0, a[at_a.x], right);
        add8(&sums1, a[at_a.y], right);
        add8(&sums2, a[at_a.z], right);
        add8(&sums3, a[at_a.w], right);
        at_a += vec4(a_next);
        at_b += vec4(b_next);
    }
    store_eight(row, column, sums0);
    store_eight(row + 8u, column, sums1);
    store_eight(row + 16u, column, sums2);
    store_eight(row + 24u, column, sums3);
}

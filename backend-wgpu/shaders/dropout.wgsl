// Dropout. GROUP: invocations of a workgroup.

struct By {
    y_at: u32, x_at: u32, residual_at: u32,
    n: u32,
    /// The stream, and the number of the first element in it, low word first.
    key: array<u32, 2>, first: array<u32, 2>,
    threshold: u32, scale: f32, has_residual: u32,
}

var<immediate> by: By;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> residual: array<f32>;

fn turn(pair: vec2<u32>, by: u32) -> vec2<u32> {
    let sum = pair.x + pair.y;
    return vec2(sum, ((pair.y << by) | (pair.y >> (32u - by))) ^ sum);
}

/// The first word of a block of Threefry-2x32 with 20 rounds (Salmon et al., 2011).
fn threefry(key: vec2<u32>, counter: vec2<u32>) -> u32 {
    let keys = vec3(key, 0x1BD11BDAu ^ key.x ^ key.y);
    var pair = counter + key;
    for (var four = 0u; four < 5u; four++) {
        if four % 2u == 0u {
            pair = turn(turn(turn(turn(pair, 13u), 15u), 26u), 6u);
        } else {
            pair = turn(turn(turn(turn(pair, 17u), 29u), 16u), 24u);
        }
        pair += vec2(keys[(four + 1u) % 3u], keys[(four + 2u) % 3u] + four + 1u);
    }
    return pair.x;
}

@compute @workgroup_size(GROUP)
fn dropout(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i >= by.n {
        return;
    }
    let low = by.first[0] + i;
    let high = by.first[1] + select(0u, 1u, low < i);
    var element = 0.0;
    if threefry(vec2(by.key[0], by.key[1]), vec2(low, high)) >= by.threshold {
        element = x[by.x_at + i] * by.scale;
    }
    if by.has_residual != 0u {
        element += residual[by.residual_at + i];
    }
    y[by.y_at + i] = element;
}

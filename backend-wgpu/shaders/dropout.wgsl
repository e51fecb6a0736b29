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
    let counter = plus(vec2(by.first[0], by.first[1]), vec2(i, 0u));
    var element = 0.0;
    if random_bits(vec2(by.key[0], by.key[1]), counter) >= by.threshold {
        element = x[by.x_at + i] * by.scale;
    }
    if by.has_residual != 0u {
        element += residual[by.residual_at + i];
    }
    y[by.y_at + i] = element;
}

// Elements on their own. GROUP: invocations of a workgroup.

struct Fill { out_at: u32, n: u32, value: f32 }
struct Accumulate { into_at: u32, x_at: u32, n: u32 }
struct Gelu { y_at: u32, x_at: u32, n: u32 }
struct GeluDx { dx_at: u32, y_at: u32, dy_at: u32, x_at: u32, n: u32 }

var<immediate> fill_by: Fill;
@group(0) @binding(0) var<storage, read_write> filled: array<f32>;

@compute @workgroup_size(GROUP)
fn fill(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i < fill_by.n {
        filled[fill_by.out_at + i] = fill_by.value;
    }
}

var<immediate> accumulate_by: Accumulate;
@group(0) @binding(0) var<storage, read_write> into: array<f32>;
@group(0) @binding(1) var<storage, read> addend: array<f32>;

@compute @workgroup_size(GROUP)
fn accumulate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i < accumulate_by.n {
        into[accumulate_by.into_at + i] += addend[accumulate_by.x_at + i];
    }
}

/// tanh(√(2/π) (x + 0.044715 x³)), as 1 - 2/(1 + exp 2u).
fn gate(x: f32) -> f32 {
    let u = 0.797884561 * (x + 0.044715 * x * x * x);
    return 1.0 - 2.0 / (1.0 + exp1(2.0 * clamp(u, -20.0, 20.0)));
}

var<immediate> gelu_by: Gelu;
@group(0) @binding(0) var<storage, read_write> gelu_y: array<f32>;
@group(0) @binding(1) var<storage, read> gelu_x: array<f32>;

@compute @workgroup_size(GROUP)
fn gelu(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i < gelu_by.n {
        let x = gelu_x[gelu_by.x_at + i];
        gelu_y[gelu_by.y_at + i] = 0.5 * x * (1.0 + gate(x));
    }
}

var<immediate> gelu_dx_by: GeluDx;
@group(0) @binding(0) var<storage, read_write> gelu_dx_dx: array<f32>;
@group(0) @binding(1) var<storage, read_write> gelu_dx_y: array<f32>;
@group(0) @binding(2) var<storage, read> gelu_dx_dy: array<f32>;
@group(0) @binding(3) var<storage, read> gelu_dx_x: array<f32>;

@compute @workgroup_size(GROUP)
fn gelu_dx(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i < gelu_dx_by.n {
        let x = gelu_dx_x[gelu_dx_by.x_at + i];
        let t = gate(x);
        let du = 0.797884561 * (1.0 + 0.134145 * x * x);
        let slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
        gelu_dx_dx[gelu_dx_by.dx_at + i] = gelu_dx_dy[gelu_dx_by.dy_at + i] * slope;
        gelu_dx_y[gelu_dx_by.y_at + i] = 0.5 * x * (1.0 + t);
    }
}

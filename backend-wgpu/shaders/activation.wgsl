// Functions of each element, or of the gate in rows of gate and up side by side, and their slopes.
// GROUP: invocations of a workgroup. FUNCTION: which one.

const GELU_TANH = 0u;
const GELU = 1u;
const SILU = 3u;
// Otherwise the hyperbolic tangent.

/// The function and its slope.
fn both(x: f32) -> vec2<f32> {
    if FUNCTION == GELU_TANH {
        // x/2 (1 + tanh u) is x σ(2u), which does not cancel; σ' is σ² exp(-2u).
        let slope = 1.59576912 + 0.214064420 * x * x;
        let e = exp1(-x * (1.59576912 + 0.0713548066 * x * x));
        let s = 1.0 / (1.0 + e);
        return vec2(x * s, s + x * slope * (e * s) * s);
    }
    if FUNCTION == GELU {
        // x Φ(x), with Φ to 1.5e-7 (Abramowitz & Stegun, 7.1.26).
        let z = abs(x) * 0.707106781;
        let e = exp1(-z * z);
        let t = 1.0 / (1.0 + 0.3275911 * z);
        var p = fma(1.061405429, t, -1.453152027);
        p = fma(p, t, 1.421413741);
        p = fma(p, t, -0.284496736);
        p = fma(p, t, 0.254829592);
        let tail = 0.5 * p * t * e;
        let below = select(1.0 - tail, tail, x < 0.0);
        return vec2(x * below, below + x * 0.398942280 * e);
    }
    if FUNCTION == SILU {
        let e = exp1(-x);
        let s = 1.0 / (1.0 + e);
        return vec2(x * s, s + x * s * (e * s));
    }
    let e = exp1(-2.0 * abs(x));
    let square = x * x;
    // Where 1 - e would cancel, the series.
    let near = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * 17.0 / 315.0)));
    let value = select(sign(x) * (1.0 - e) / (1.0 + e), near, abs(x) < 0.1);
    return vec2(value, 4.0 * e / ((1.0 + e) * (1.0 + e)));
}

struct Forward { y_at: u32, x_at: u32, n: u32 }

var<immediate> forward_by: Forward;
@group(0) @binding(0) var<storage, read_write> forward_y: array<f32>;
@group(0) @binding(1) var<storage, read> forward_x: array<f32>;

@compute @workgroup_size(GROUP)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i < forward_by.n {
        forward_y[forward_by.y_at + i] = both(forward_x[forward_by.x_at + i]).x;
    }
}

struct Backward { dx_at: u32, y_at: u32, dy_at: u32, x_at: u32, n: u32 }

var<immediate> backward_by: Backward;
@group(0) @binding(0) var<storage, read_write> dx: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;

@compute @workgroup_size(GROUP)
fn backward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i < backward_by.n {
        let of_x = both(x[backward_by.x_at + i]);
        dx[backward_by.dx_at + i] = dy[backward_by.dy_at + i] * of_x.y;
        y[backward_by.y_at + i] = of_x.x;
    }
}

struct Gated { y_at: u32, x_at: u32, n: u32, features: u32 }

var<immediate> gated_by: Gated;

/// Where the gate of an element of the result lies, in rows of gate and up; up lies `features` further.
fn gate_of(i: u32, features: u32) -> u32 {
    return i + i / features * features;
}

@compute @workgroup_size(GROUP)
fn gated(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i < gated_by.n {
        let gate = gated_by.x_at + gate_of(i, gated_by.features);
        forward_y[gated_by.y_at + i] = both(forward_x[gate]).x * forward_x[gate + gated_by.features];
    }
}

struct GatedBackward { dx_at: u32, y_at: u32, dy_at: u32, x_at: u32, n: u32, features: u32 }

var<immediate> gated_backward_by: GatedBackward;

@compute @workgroup_size(GROUP)
fn gated_backward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let by = gated_backward_by;
    let i = flat(group, groups) * GROUP + lane;
    if i < by.n {
        let gate = gate_of(i, by.features);
        let of_gate = both(x[by.x_at + gate]);
        let up = x[by.x_at + gate + by.features];
        let d = dy[by.dy_at + i];
        dx[by.dx_at + gate] = d * of_gate.y * up;
        dx[by.dx_at + gate + by.features] = d * of_gate.x;
        y[by.y_at + i] = of_gate.x * up;
    }
}

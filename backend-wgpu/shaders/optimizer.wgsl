// Updates of weights, element by element. GROUP: invocations of a workgroup.

struct Adam {
    n: u32, lr: f32, beta1: f32, rest1: f32, beta2: f32, rest2: f32, eps: f32,
    /// 1/(1 - β₁ᵗ) and 1/(1 - β₂ᵗ).
    unbias1: f32, unbias2: f32,
    decay: f32, scale: f32,
}

/// m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g²; the direction is m over √v + eps, both corrected.
fn direction(by: Adam, g: f32, m: ptr<function, f32>, v: ptr<function, f32>) -> f32 {
    let scaled = g * by.scale;
    *m = by.beta1 * *m + by.rest1 * scaled;
    *v = by.beta2 * *v + by.rest2 * scaled * scaled;
    return *m * by.unbias1 / (sqrt(*v * by.unbias2) + by.eps);
}

struct AdamwBy { w_at: u32, m_at: u32, v_at: u32, g_at: u32, adam: Adam }

var<immediate> adamw_by: AdamwBy;
@group(0) @binding(0) var<storage, read_write> adamw_w: array<f32>;
@group(0) @binding(1) var<storage, read_write> adamw_m: array<f32>;
@group(0) @binding(2) var<storage, read_write> adamw_v: array<f32>;
@group(0) @binding(3) var<storage, read> adamw_g: array<f32>;

@compute @workgroup_size(GROUP)
fn adamw(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    let by = adamw_by.adam;
    if i >= by.n {
        return;
    }
    var m = adamw_m[adamw_by.m_at + i];
    var v = adamw_v[adamw_by.v_at + i];
    let u = direction(by, adamw_g[adamw_by.g_at + i], &m, &v);
    let w = adamw_w[adamw_by.w_at + i];
    adamw_m[adamw_by.m_at + i] = m;
    adamw_v[adamw_by.v_at + i] = v;
    adamw_w[adamw_by.w_at + i] = w - by.lr * by.decay * w - by.lr * u;
}

struct LambBy { d_at: u32, m_at: u32, v_at: u32, g_at: u32, w_at: u32, adam: Adam }

var<immediate> lamb_by: LambBy;
@group(0) @binding(0) var<storage, read_write> lamb_d: array<f32>;
@group(0) @binding(1) var<storage, read_write> lamb_m: array<f32>;
@group(0) @binding(2) var<storage, read_write> lamb_v: array<f32>;
@group(0) @binding(3) var<storage, read> lamb_g: array<f32>;
@group(0) @binding(4) var<storage, read> lamb_w: array<f32>;

/// LAMB's direction: AdamW's, and the decay.
@compute @workgroup_size(GROUP)
fn lamb(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    let by = lamb_by.adam;
    if i >= by.n {
        return;
    }
    var m = lamb_m[lamb_by.m_at + i];
    var v = lamb_v[lamb_by.v_at + i];
    let u = direction(by, lamb_g[lamb_by.g_at + i], &m, &v);
    lamb_m[lamb_by.m_at + i] = m;
    lamb_v[lamb_by.v_at + i] = v;
    lamb_d[lamb_by.d_at + i] = u + by.decay * lamb_w[lamb_by.w_at + i];
}

struct TrustBy { w_at: u32, d_at: u32, w_norm_at: u32, d_norm_at: u32, n: u32, lr: f32 }

var<immediate> trust_by: TrustBy;
@group(0) @binding(0) var<storage, read_write> trust_w: array<f32>;
@group(0) @binding(1) var<storage, read> trust_d: array<f32>;
@group(0) @binding(2) var<storage, read> w_norm: array<f32>;
@group(0) @binding(3) var<storage, read> d_norm: array<f32>;

/// LAMB's step: as long as the weights are, times the learning rate. The norms come squared.
@compute @workgroup_size(GROUP)
fn trust(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    if i >= trust_by.n {
        return;
    }
    let lengths = sqrt(vec2(w_norm[trust_by.w_norm_at], d_norm[trust_by.d_norm_at]));
    let is_some = lengths.x > 0.0 && lengths.y > 0.0;
    let ratio = select(1.0, lengths.x / max(lengths.y, 1e-38), is_some);
    trust_w[trust_by.w_at + i] -= trust_by.lr * ratio * trust_d[trust_by.d_at + i];
}

struct SgdBy { w_at: u32, m_at: u32, g_at: u32, n: u32, lr: f32, momentum: f32, decay: f32, scale: f32 }

var<immediate> sgd_by: SgdBy;
@group(0) @binding(0) var<storage, read_write> sgd_w: array<f32>;
@group(0) @binding(1) var<storage, read_write> sgd_m: array<f32>;
@group(0) @binding(2) var<storage, read> sgd_g: array<f32>;

@compute @workgroup_size(GROUP)
fn sgd(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let by = sgd_by;
    let i = flat(group, groups) * GROUP + lane;
    if i >= by.n {
        return;
    }
    let m = by.momentum * sgd_m[by.m_at + i] + by.scale * sgd_g[by.g_at + i];
    let w = sgd_w[by.w_at + i];
    sgd_m[by.m_at + i] = m;
    sgd_w[by.w_at + i] = w - by.lr * by.decay * w - by.lr * m;
}

// The forward pass of self-attention.

struct Forward {
    out_at: u32, log_sum_at: u32, qkv_at: u32, seen_at: u32,
    by: By,
    /// Rows of the sample that come before the first query: these have no results.
    past: u32,
}

var<immediate> call: Forward;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read_write> log_sum: array<f32>;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> seen: array<u32>;

fn store(at: u32, i: u32, x: f32) {
    if i < DIM {
        out[at + i] = x;
    }
}

@compute @workgroup_size(QUERIES)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = call.by;
    let head = head_of(by, group.z, group.y);
    let own = call.past + group.x * QUERIES;
    let wanted = own + invocation;
    let t = min(wanted, by.context - 1u);
    let keys_seen = keys_of(by, head, own, t);
    let q_at = call.qkv_at + qkv_of(head, t, head.q);
    let of_row = (head.row + t - call.past) * by.heads + head.head;
    var q: array<vec4<f32>, QUADS>;
    var mixed: array<vec4<f32>, QUADS>;
    // repeat i QUADS
    q[{i}] = qkv_quad(q_at, {i});
    mixed[{i}] = vec4(0.0);
    // end
    var largest = LOWEST;
    var sum = 0.0;
    for (var u = keys_seen.start; u < keys_seen.stop; u += 4u) {
        if TILE > 0u && u % max(TILE, 1u) == 0u {
            bring_keys(call.qkv_at, head, by.context, u, invocation);
        }
        let keys = vec4(u, u + 1u, u + 2u, u + 3u);
        let inside = min(keys, vec4(by.context - 1u));
        let k_at = select(in_qkv(call.qkv_at, head, inside, head.k), in_tile(keys), TILE > 0u);
        let v_at = select(in_qkv(call.qkv_at, head, inside, head.v), in_tile(keys), TILE > 0u);
        var s = vec4(0.0);
        // repeat i QUADS
        s += dots_1(q[{i}], k_at, {i});
        // end
        let sees = is_seen(keys_seen, keys);
        s = select(vec4(LOWEST), s * by.scale, sees);
        let next = max(largest, max4(s));
        let rescale = exp1(largest - next);
        var p = select(vec4(0.0), exp4(s - next), sees);
        sum = sum * rescale + sum4(p);
        p *= of_keys(by, of_row, keys);
        largest = next;
        // repeat i QUADS
        mixed[{i}] = add_2(mixed[{i}] * rescale, p, v_at, {i});
        // end
    }
    if wanted >= by.context {
        return;
    }
    let out_at = call.out_at + mixed_of(head, t - call.past);
    // repeat i QUADS
    store_quad(out_at, {i}, mixed[{i}] / sum);
    // end
    log_sum[call.log_sum_at + of_row] = largest + log1(sum);
}

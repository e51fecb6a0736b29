// Softmax cross-entropy, forward and backward. GROUP: invocations of a workgroup, LANES: how many of them
// share a row.

const ROWS = GROUP / LANES;
const LOWEST = -3.0e38;
/// The target of a row that counts for nothing.
const IGNORED = 0xffffffffu;

/// The largest logit so far, and the sum of exponentials relative to it.
var<workgroup> shared_parts: array<vec2<f32>, GROUP>;

struct By {
    gradient_at: u32, losses_at: u32, targets_at: u32,
    rows: u32, vocab: u32, scale: f32,
}

var<immediate> by: By;
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> losses: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;

fn join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let largest = max(a.x, b.x);
    return vec2(largest, a.y * exp1(a.x - largest) + b.y * exp1(b.x - largest));
}

/// A logit of the row that begins at `at`, and behind its end one that weighs nothing.
fn logit(at: u32, i: u32) -> f32 {
    if i >= by.vocab {
        return LOWEST;
    }
    return logits[at + i];
}

fn store(at: u32, i: u32, gradient: f32) {
    if i < by.vocab {
        logits[at + i] = gradient;
    }
}

@compute @workgroup_size(GROUP)
fn cross_entropy(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let lane = invocation % LANES;
    let wanted = flat(group, groups) * ROWS + invocation / LANES;
    let row = min(wanted, by.rows - 1u); // all reach the barriers
    let at = by.gradient_at + row * by.vocab;
    let target_id = targets[by.targets_at + row];
    let is_counted = target_id != IGNORED;
    let target_logit = logits[at + select(0u, target_id, is_counted)];

    var largest = LOWEST;
    var sums = vec4(0.0);
    for (var i = lane; i < by.vocab; i += 4u * LANES) {
        let four = vec4(
            logit(at, i), logit(at, i + LANES), logit(at, i + 2u * LANES), logit(at, i + 3u * LANES),
        );
        let next = max(largest, max4(four));
        sums = sums * exp1(largest - next) + exp4(four - next);
        largest = next;
    }
    var part = vec2(largest, sum4(sums));
    if LANES > 1u {
        shared_parts[invocation] = part;
        workgroupBarrier();
        for (var half = LANES / 2u; half > 0u; half /= 2u) {
            if lane < half {
                shared_parts[invocation] = join(shared_parts[invocation], shared_parts[invocation + half]);
            }
            workgroupBarrier();
        }
        part = shared_parts[invocation - lane];
    }
    if wanted >= by.rows {
        return;
    }
    let factor = by.scale / part.y;
    for (var i = lane; i < by.vocab; i += 4u * LANES) {
        let ids = vec4(i, i + LANES, i + 2u * LANES, i + 3u * LANES);
        let four = vec4(logit(at, ids.x), logit(at, ids.y), logit(at, ids.z), logit(at, ids.w));
        let counted = exp4(four - part.x) * factor - select(vec4(0.0), vec4(by.scale), ids == vec4(target_id));
        // Chosen, not multiplied by zero: the logits of a row that is ignored need not be finite.
        let gradient = select(vec4(0.0), counted, is_counted);
        store(at, ids.x, gradient.x);
        store(at, ids.y, gradient.y);
        store(at, ids.z, gradient.z);
        store(at, ids.w, gradient.w);
    }
    if lane == 0u {
        let loss = by.scale * (log1(part.y) + (part.x - target_logit));
        losses[by.losses_at + row] = select(0.0, loss, is_counted);
    }
}

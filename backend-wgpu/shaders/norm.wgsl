// Layer norm and RMS norm: rows on their own. GROUP: invocations of a workgroup, LANES: how many of them share a row.
// CENTRED: 1 for layer norm, which takes the mean from each row and adds a bias; 0 for RMS norm.

const ROWS = GROUP / LANES;
/// Numbers that are kept of a row: its mean if centred, and what it is multiplied by. As many weights as a column has.
const STATS = 1u + CENTRED;

var<workgroup> shared_sums: array<vec2<f32>, GROUP>;

/// The sum of `mine` over the lanes of a row, in a fixed order.
fn row_sum(mine: vec2<f32>, invocation: u32) -> vec2<f32> {
    if LANES == 1u {
        return mine;
    }
    let lane = invocation % LANES;
    shared_sums[invocation] = mine;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane < half {
            shared_sums[invocation] += shared_sums[invocation + half];
        }
        workgroupBarrier();
    }
    let sum = shared_sums[invocation - lane];
    workgroupBarrier();
    return sum;
}

struct Forward {
    y_at: u32, stats_at: u32, x_at: u32, gain_at: u32, bias_at: u32,
    rows: u32, width: u32, epsilon: f32,
}

var<immediate> forward_by: Forward;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read_write> stats_out: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> gain: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;

@compute @workgroup_size(GROUP)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = forward_by;
    let lane = invocation % LANES;
    let wanted = flat(group, groups) * ROWS + invocation / LANES;
    let row = min(wanted, by.rows - 1u); // all reach the barriers
    let from_x = by.x_at + row * by.width;
    var mean = 0.0;
    if CENTRED == 1u {
        var sum = 0.0;
        for (var i = lane; i < by.width; i += LANES) {
            sum += x[from_x + i];
        }
        mean = row_sum(vec2(sum, 0.0), invocation).x / f32(by.width);
        // The mean's own rounding, which far from zero is not small.
        var rest = 0.0;
        for (var i = lane; i < by.width; i += LANES) {
            rest += x[from_x + i] - mean;
        }
        mean += row_sum(vec2(rest, 0.0), invocation).x / f32(by.width);
    }
    var squares = 0.0;
    for (var i = lane; i < by.width; i += LANES) {
        let centred = x[from_x + i] - mean;
        squares += centred * centred;
    }
    let variance = row_sum(vec2(squares, 0.0), invocation).x / f32(by.width);
    let scale = 1.0 / sqrt(variance + by.epsilon);
    if wanted >= by.rows {
        return;
    }
    let to_y = by.y_at + row * by.width;
    for (var i = lane; i < by.width; i += LANES) {
        var element = (x[from_x + i] - mean) * scale * gain[by.gain_at + i];
        if CENTRED == 1u {
            element += bias[by.bias_at + i];
        }
        y[to_y + i] = element;
    }
    if lane == 0u {
        let at = by.stats_at + STATS * row;
        if CENTRED == 1u {
            stats_out[at] = mean;
        }
        stats_out[at + CENTRED] = scale;
    }
}

struct BackwardInput {
    dx_at: u32, dy_at: u32, x_at: u32, stats_at: u32, gain_at: u32, residual_at: u32,
    rows: u32, width: u32, has_residual: u32,
}

var<immediate> input_by: BackwardInput;
@group(0) @binding(0) var<storage, read_write> dx: array<f32>;
@group(0) @binding(1) var<storage, read> input_dy: array<f32>;
@group(0) @binding(2) var<storage, read> input_x: array<f32>;
@group(0) @binding(3) var<storage, read> input_stats: array<f32>;
@group(0) @binding(4) var<storage, read> input_gain: array<f32>;
@group(0) @binding(5) var<storage, read> residual: array<f32>;

@compute @workgroup_size(GROUP)
fn backward_input(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = input_by;
    let lane = invocation % LANES;
    let wanted = flat(group, groups) * ROWS + invocation / LANES;
    let row = min(wanted, by.rows - 1u);
    let at = row * by.width;
    let stats_at = by.stats_at + STATS * row;
    let mean = select(0.0, input_stats[stats_at], CENTRED == 1u);
    let scale = input_stats[stats_at + CENTRED];
    var sums = vec2(0.0);
    for (var i = lane; i < by.width; i += LANES) {
        let d = input_dy[by.dy_at + at + i] * input_gain[by.gain_at + i];
        let normed = (input_x[by.x_at + at + i] - mean) * scale;
        sums += vec2(select(0.0, d, CENTRED == 1u), d * normed);
    }
    let means = row_sum(sums, invocation) / f32(by.width);
    // The rounding of the mean beside products that a device does not round: of a row of one they are all there is.
    var rest = 0.0;
    if CENTRED == 1u {
        for (var i = lane; i < by.width; i += LANES) {
            rest += input_dy[by.dy_at + at + i] * input_gain[by.gain_at + i] - means.x;
        }
        rest = row_sum(vec2(rest, 0.0), invocation).x / f32(by.width);
    }
    if wanted >= by.rows {
        return;
    }
    for (var i = lane; i < by.width; i += LANES) {
        let centred = input_dy[by.dy_at + at + i] * input_gain[by.gain_at + i] - means.x;
        let normed = (input_x[by.x_at + at + i] - mean) * scale;
        var element = scale * (centred - rest - normed * means.y);
        if by.has_residual != 0u {
            element += residual[by.residual_at + at + i];
        }
        dx[by.dx_at + at + i] = element;
    }
}

struct BackwardWeight {
    parts_at: u32, dy_at: u32, x_at: u32, stats_at: u32,
    rows: u32, width: u32, chunk: u32,
}

var<immediate> weight_by: BackwardWeight;
@group(0) @binding(0) var<storage, read_write> parts: array<f32>;
@group(0) @binding(1) var<storage, read> weight_dy: array<f32>;
@group(0) @binding(2) var<storage, read> weight_x: array<f32>;
@group(0) @binding(3) var<storage, read> weight_stats: array<f32>;

/// For each chunk of rows: the gradient of the gain, then that of the bias if there is one.
@compute @workgroup_size(GROUP)
fn backward_weight(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let by = weight_by;
    let column = group.x * GROUP + invocation;
    if column >= by.width {
        return;
    }
    let first = group.y * by.chunk;
    let end = min(first + by.chunk, by.rows);
    var sums = vec2(0.0);
    for (var r = first; r < end; r++) {
        let d = weight_dy[by.dy_at + r * by.width + column];
        let stats_at = by.stats_at + STATS * r;
        let mean = select(0.0, weight_stats[stats_at], CENTRED == 1u);
        let normed = (weight_x[by.x_at + r * by.width + column] - mean) * weight_stats[stats_at + CENTRED];
        sums += vec2(d * normed, d);
    }
    let at = by.parts_at + group.y * STATS * by.width + column;
    parts[at] = sums.x;
    if CENTRED == 1u {
        parts[at + by.width] = sums.y;
    }
}

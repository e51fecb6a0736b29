// The token and position tables. GROUP: invocations of a workgroup.

struct Forward {
    y_at: u32, tokens_at: u32, positions_at: u32, ids_at: u32,
    rows: u32, hidden: u32, context: u32,
    /// Of the first row within the batch.
    first_row: u32,
    /// The ids and positions whose rows of the tables are bound.
    first_id: u32, end_id: u32, first_position: u32, end_position: u32,
}
struct Tokens {
    d_tokens_at: u32, dy_at: u32, order_at: u32,
    hidden: u32, n_groups: u32, first_group: u32, first_id: u32,
    /// Where in `order` the starts and the ids lie.
    starts: u32, ids: u32,
}
struct Positions {
    d_positions_at: u32, dy_at: u32,
    rows: u32, hidden: u32, context: u32, first_row: u32,
    /// The positions whose rows of the table are bound.
    first_position: u32, n_positions: u32,
}

var<immediate> forward_by: Forward;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> tokens: array<f32>;
@group(0) @binding(2) var<storage, read> positions: array<f32>;
@group(0) @binding(3) var<storage, read> ids: array<u32>;

@compute @workgroup_size(GROUP)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let by = forward_by;
    let i = flat(group, groups) * GROUP + lane;
    let row = i / by.hidden;
    if row >= by.rows {
        return;
    }
    let column = i % by.hidden;
    let id = ids[by.ids_at + row];
    let position = (by.first_row + row) % by.context;
    if id < by.first_id || id >= by.end_id
        || position < by.first_position || position >= by.end_position {
        return;
    }
    y[by.y_at + i] = tokens[by.tokens_at + (id - by.first_id) * by.hidden + column]
        + positions[by.positions_at + (position - by.first_position) * by.hidden + column];
}

var<immediate> tokens_by: Tokens;
@group(0) @binding(0) var<storage, read_write> d_tokens: array<f32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
/// The rows sorted by their ids; where each group of one id begins among them, and where the last ends; the
/// ids of the groups.
@group(0) @binding(2) var<storage, read> order: array<u32>;

@compute @workgroup_size(GROUP)
fn backward_tokens(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let by = tokens_by;
    let i = flat(group, groups) * GROUP + lane;
    if i / by.hidden >= by.n_groups {
        return;
    }
    let same = by.first_group + i / by.hidden;
    let column = i % by.hidden;
    let starts = by.order_at + by.starts;
    let end = order[starts + same + 1u];
    var sum = 0.0;
    for (var r = order[starts + same]; r < end; r++) {
        sum += dy[by.dy_at + order[by.order_at + r] * by.hidden + column];
    }
    let id = order[by.order_at + by.ids + same];
    d_tokens[by.d_tokens_at + (id - by.first_id) * by.hidden + column] += sum;
}

var<immediate> positions_by: Positions;
@group(0) @binding(0) var<storage, read_write> d_positions: array<f32>;

@compute @workgroup_size(GROUP)
fn backward_positions(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let by = positions_by;
    let i = flat(group, groups) * GROUP + lane;
    if i / by.hidden >= by.n_positions {
        return;
    }
    let position = by.first_position + i / by.hidden;
    let column = i % by.hidden;
    let first = (position + by.context - by.first_row % by.context) % by.context;
    var sum = 0.0;
    for (var r = first; r < by.rows; r += by.context) {
        sum += dy[by.dy_at + r * by.hidden + column];
    }
    d_positions[by.d_positions_at + i] += sum;
}

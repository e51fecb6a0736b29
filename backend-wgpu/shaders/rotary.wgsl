// Rotary positions: features i and i + d/2 of a head of d are turned by an angle of the row's position.
// GROUP: invocations of a workgroup.

struct By {
    y_at: u32, x_at: u32, table_at: u32,
    rows: u32, width: u32, context: u32,
    /// Features that are turned, and those of a head.
    turned: u32, dim: u32,
    /// Of the first row within the batch.
    first_row: u32,
    /// The positions whose rows of the table are bound.
    first_position: u32, end_position: u32,
    /// -1 to turn a gradient back.
    sign: f32,
}

var<immediate> by: By;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;

@compute @workgroup_size(GROUP)
fn rotary(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, groups) * GROUP + lane;
    let row = i / by.width;
    let position = (by.first_row + row) % by.context;
    if row >= by.rows || position < by.first_position || position >= by.end_position {
        return;
    }
    let own = x[by.x_at + i];
    let column = i % by.width;
    if column >= by.turned {
        y[by.y_at + i] = own;
        return;
    }
    let half = by.dim / 2u;
    let feature = column % by.dim;
    let angle_at = by.table_at + (position - by.first_position) * by.dim + feature % half;
    let cosine = table[angle_at];
    let sine = by.sign * table[angle_at + half];
    if feature < half {
        y[by.y_at + i] = cosine * own - sine * x[by.x_at + i + half];
    } else {
        y[by.y_at + i] = cosine * own + sine * x[by.x_at + i - half];
    }
}

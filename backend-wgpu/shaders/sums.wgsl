// Sums in a fixed order: each invocation adds up a part, and the parts are summed in turn.
// GROUP: invocations of a workgroup.

struct Sums { out_at: u32, x_at: u32, n: u32, n_parts: u32 }
struct Columns { out_at: u32, x_at: u32, rows: u32, width: u32, step: u32, chunk: u32, add: u32 }

var<immediate> by: Sums;
@group(0) @binding(0) var<storage, read_write> parts: array<f32>;
@group(0) @binding(1) var<storage, read> elements: array<f32>;

/// parts[p] = Σ x[p + i n_parts]
@compute @workgroup_size(GROUP)
fn sums(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let part = flat(group, groups) * GROUP + lane;
    if part < by.n_parts {
        var sum = 0.0;
        for (var i = part; i < by.n; i += by.n_parts) {
            sum += elements[by.x_at + i];
        }
        parts[by.out_at + part] = sum;
    }
}

/// parts[p] = Σ x[p + i n_parts]²
@compute @workgroup_size(GROUP)
fn squares(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let part = flat(group, groups) * GROUP + lane;
    if part < by.n_parts {
        var sum = 0.0;
        for (var i = part; i < by.n; i += by.n_parts) {
            let x = elements[by.x_at + i];
            sum += x * x;
        }
        parts[by.out_at + part] = sum;
    }
}

var<immediate> columns_by: Columns;

/// parts[c, o] (+)= Σ x[r, o] over the rows r of chunk c, which lie `step` elements apart
@compute @workgroup_size(GROUP)
fn columns(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let column = group.x * GROUP + lane;
    if column < columns_by.width {
        let first = group.y * columns_by.chunk;
        let end = min(first + columns_by.chunk, columns_by.rows);
        var sum = 0.0;
        for (var r = first; r < end; r++) {
            sum += elements[columns_by.x_at + r * columns_by.step + column];
        }
        let at = columns_by.out_at + group.y * columns_by.width + column;
        if columns_by.add != 0u {
            sum += parts[at];
        }
        parts[at] = sum;
    }
}

// Elements on their own. GROUP: invocations of a workgroup.

struct Fill { out_at: u32, n: u32, value: f32 }
struct Accumulate { into_at: u32, x_at: u32, n: u32 }

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

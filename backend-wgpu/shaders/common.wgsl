// Functions that several layers need. Built-in ones have as few digits as a driver likes; these have all of f32.

/// The number of this workgroup in a grid of two dimensions.
fn flat(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

/// Whether it is not a number, whatever a compiler thinks of such.
fn is_nan(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4(0x7fffffffu)) > vec4(0x7f800000u);
}

/// exp(x); 0 and a large number where f32 ends.
fn exp4(x: vec4<f32>) -> vec4<f32> {
    let clamped = clamp(x, vec4(-87.0), vec4(88.0));
    let n = round(clamped * 1.44269504);
    // ln 2 in two parts, the first of which has few enough bits for n times it to be exact.
    let r = fma(n, vec4(-0.693145752), clamped) - n * 1.42860677e-6;
    var e = fma(r, vec4(1.98412698e-4), vec4(1.38888889e-3));
    e = fma(e, r, vec4(8.33333333e-3));
    e = fma(e, r, vec4(4.16666667e-2));
    e = fma(e, r, vec4(1.66666667e-1));
    e = fma(e, r, vec4(0.5));
    e = fma(e, r, vec4(1.0));
    e = fma(e, r, vec4(1.0));
    let power = bitcast<vec4<f32>>((vec4<i32>(n) + 127) << vec4(23u));
    return select(select(e * power, vec4(0.0), x < vec4(-87.0)), x, is_nan(x));
}

fn exp1(x: f32) -> f32 {
    return exp4(vec4(x)).x;
}

/// log(x) for positive x: the built-in one, and a step of Newton's.
fn log1(x: f32) -> f32 {
    let guess = log(x);
    let e = exp1(guess);
    return guess + 2.0 * (x - e) / (x + e);
}

fn max4(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

fn sum4(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

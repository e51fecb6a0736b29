//! Gradients of all stages as one vector: length, direction, and comparison up to rounding.

/// Allowed relative error of sums taken in another order.
pub(super) const ROUNDING: f64 = 1e-4;

/// Gradients by stage, parameter and element.
pub(super) type Gradients = Vec<Vec<Vec<f32>>>;

fn map(gradients: &Gradients, f: impl Fn(usize, f32) -> f32) -> Gradients {
    let tensor = |g: &Vec<f32>| g.iter().enumerate().map(|(i, &x)| f(i, x)).collect();
    gradients.iter().map(|of_stage| of_stage.iter().map(tensor).collect()).collect()
}

pub(super) fn dot(a: &Gradients, b: &Gradients) -> f64 {
    let pairs = a.iter().flatten().flatten().zip(b.iter().flatten().flatten());
    pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

pub(super) fn scaled(direction: &Gradients, by: f64) -> Gradients {
    map(direction, |_, x| (f64::from(x) * by) as f32)
}

/// The direction of the gradients, of length 1.
pub(super) fn along(gradients: &Gradients) -> Gradients {
    let length = dot(gradients, gradients).sqrt();
    assert!(length > 0.0, "all gradients are zero");
    scaled(gradients, 1.0 / length)
}

/// A direction of length 1 whose elements differ only in sign.
pub(super) fn signs(gradients: &Gradients) -> Gradients {
    let n = gradients.iter().flatten().flatten().count() as f64;
    map(gradients, |i, _| if (i * i + i / 3) % 3 == 1 { 1.0 } else { -1.0 } / n.sqrt() as f32)
}

pub(super) fn bits(gradients: &Gradients) -> Vec<u32> {
    gradients.iter().flatten().flatten().map(|x| x.to_bits()).collect()
}

pub(super) fn is_near(got: &Gradients, expected: &Gradients, what: &str) {
    let largest = expected.iter().flatten().flatten().fold(0f32, |most, x| most.max(x.abs()));
    let pairs = got.iter().flatten().flatten().zip(expected.iter().flatten().flatten());
    for (got, expected) in pairs {
        let error = f64::from((got - expected).abs());
        assert!(
            error <= ROUNDING * f64::from(largest),
            "{what}: {got} where {expected} is expected"
        );
    }
}

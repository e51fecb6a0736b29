//! Sampling of the next token from its logits.

/// Settings of sampling.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// Divisor of the logits; at 0 the likeliest token is taken.
    pub temperature: f64,
    /// Draws only among this many of the likeliest tokens.
    pub top_k: Option<usize>,
    /// Draws only among the fewest likeliest tokens that together have this probability.
    pub top_p: f64,
    /// Key of the draws.
    pub seed: u64,
    /// The most tokens that the next one follows from; the model's context by default.
    pub window: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 1, window: None }
    }
}

/// Returns the id at which the cumulated softmax of `logits / temperature`, over the ids that may
/// be drawn, passes `uniform` in `0..1`.
pub(super) fn draw(logits: &[f32], how: &Sampling, uniform: f64) -> u32 {
    let by_rank = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let Some(likeliest) = (0..logits.len()).min_by(by_rank) else { return 0 };
    if how.temperature == 0.0 {
        return likeliest as u32;
    }
    let weight = |logit: f32| (f64::from(logit - logits[likeliest]) / how.temperature).exp();
    let mut weights: Vec<f64> = logits.iter().copied().map(weight).collect();
    if how.top_k.is_some() || how.top_p < 1.0 {
        let mut ranked: Vec<usize> = (0..logits.len()).collect();
        ranked.sort_by(by_rank);
        let mut n_kept = how.top_k.unwrap_or(ranked.len()).clamp(1, ranked.len());
        let mut left = how.top_p * ranked[..n_kept].iter().map(|id| weights[*id]).sum::<f64>();
        let enough = ranked[..n_kept].iter().position(|id| {
            left -= weights[*id];
            left <= 0.0
        });
        n_kept = enough.map_or(n_kept, |last| last + 1);
        for id in &ranked[n_kept..] {
            weights[*id] = 0.0;
        }
    }
    let mut left = uniform * weights.iter().sum::<f64>();
    for (id, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return id as u32;
        }
    }
    likeliest as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFORMS: [f64; 5] = [0.05, 0.15, 0.35, 0.65, 0.99];

    /// Draws from probabilities of 0.1, 0.4, 0.2 and 0.3.
    fn draws(how: Sampling) -> [u32; 5] {
        let logits = [1.0f32, 4.0, 2.0, 3.0].map(f32::ln);
        UNIFORMS.map(|uniform| draw(&logits, &how, uniform))
    }

    #[test]
    fn draws_follow_the_distribution() {
        let all = Sampling::default();
        let logits = [0.0, f32::ln(3.0), f32::NEG_INFINITY];
        assert_eq!([0.1, 0.24, 0.26, 0.99].map(|u| draw(&logits, &all, u)), [0, 0, 1, 1]);
        assert_eq!(draws(all), [0, 1, 1, 2, 3]);
        assert_eq!(draws(Sampling { temperature: 0.0, ..all }), [1; 5]);
        assert_eq!(draws(Sampling { temperature: 1e-9, ..all }), [1; 5]);
        // Squared and normalised: 1, 16, 4 and 9 of 30.
        assert_eq!(draws(Sampling { temperature: 0.5, ..all }), [1, 1, 1, 2, 3]);
    }

    #[test]
    fn the_tail_is_cut_off() {
        let all = Sampling::default();
        assert_eq!(draws(Sampling { top_k: Some(1), ..all }), [1; 5]);
        // 4 and 3 of 7.
        assert_eq!(draws(Sampling { top_k: Some(2), ..all }), [1, 1, 1, 3, 3]);
        assert_eq!(draws(Sampling { top_p: 0.6, ..all }), [1, 1, 1, 3, 3]);
        assert_eq!(draws(Sampling { top_p: 0.3, ..all }), [1; 5]);
        // Of the remaining 4 and 3, 4 is more than half.
        assert_eq!(draws(Sampling { top_k: Some(2), top_p: 0.5, ..all }), [1; 5]);
        assert_eq!(draws(Sampling { top_k: Some(9), ..all }), draws(all));
    }

    #[test]
    fn of_equals_the_first_is_taken() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(draw(&[1.0, 2.0, 2.0], &greedy, 0.9), 1);
    }
}

//! Suggestions for misspelled words.

/// The candidate that `word` most likely meant.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('_', "-");
    candidates.min_by_key(|candidate| {
        (!candidate.contains(&word), strsim::damerau_levenshtein(&word, candidate))
    })
}

/// The candidate nearest to `word`, if it is similar enough.
pub fn near<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = nearest(word, candidates)?;
    let word = word.to_lowercase().replace('_', "-");
    let n_letters = word.chars().count();
    let is_part = n_letters > 2 && near.contains(&word);
    let is_like = || strsim::damerau_levenshtein(&word, near) <= n_letters.div_ceil(3);
    (is_part || is_like()).then_some(near)
}

/// The candidate most similar to `word`, if it is close enough to be a misspelling: its first word
/// is the same and half of the letters agree, or at most a fifth of the letters differ.
pub fn alike<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('_', "-");
    let first = |name: &str| name.split('-').next().map(str::to_owned);
    let scored = candidates.map(|name| {
        let similarity = strsim::normalized_damerau_levenshtein(&word, name);
        let is_sure = similarity >= 0.8 || similarity >= 0.5 && first(name) == first(&word);
        (is_sure, similarity, name)
    });
    let best = scored.filter(|(is_sure, ..)| *is_sure).max_by(|a, b| a.1.total_cmp(&b.1));
    best.map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_something_else_are_not_alike() {
        let options =
            ["trace-steps", "log", "window", "micro-batches", "micro-batch-size", "depth"];
        for (word, meant) in [
            ("dept", Some("depth")),
            ("micro-batch", Some("micro-batches")),
            ("microbatches", Some("micro-batches")),
            ("save-steps", None),
            ("load", None),
            ("wandb", None),
        ] {
            assert_eq!(alike(word, options.into_iter()), meant, "{word}");
        }
    }
}

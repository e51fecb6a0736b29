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

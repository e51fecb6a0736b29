//! A limit on the growth of a text under a `tokenizer.json`. A normalizer may replace each letter
//! by many, several times over, and the library needs many more bytes for each byte of a normalized
//! text.

use serde_json::Value;
use tokenizers::normalizers::Precompiled;
use tokenizers::{DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper};

/// The most bytes that a normalizer may make of one byte, and a decoder of one byte of a token.
pub(super) const MOST: usize = 64;
/// A short text may exceed that limit by this many bytes.
const ROOM: usize = 64 << 10;
/// The longest key of a table of characters, in bytes.
const KEY: usize = 5;

/// The steps of a normalizer.
#[derive(Debug)]
pub(super) struct Growth(Vec<(NormalizerWrapper, Step)>);

/// The growth of a text in a step.
#[derive(Debug)]
enum Step {
    /// Replaces a text, or the matches of a regular expression, by this many bytes.
    Replace(Option<String>, usize),
    /// Adds this many bytes at the beginning.
    Prepend(usize),
    /// Applies a table of characters.
    Table,
    /// Makes at most this many bytes of each byte.
    Times(usize),
}

impl Growth {
    pub(super) fn of(normalizer: Option<&NormalizerWrapper>) -> Growth {
        let mut steps = Vec::new();
        normalizer.into_iter().for_each(|normalizer| add_steps(normalizer, &mut steps));
        Growth(steps)
    }

    /// Returns true if the normalized text is not much longer than `text`. Only runs steps if the
    /// bounds on them exceed the limit.
    pub(super) fn is_bounded(&self, text: &str) -> bool {
        let most = text.len().saturating_mul(MOST).saturating_add(ROOM);
        if self.at_most(text) <= most {
            return true;
        }
        let mut text = NormalizedString::from(text);
        self.0.iter().all(|(normalizer, step)| {
            step.makes(normalizer, text.get()) <= most && normalizer.normalize(&mut text).is_ok()
        })
    }

    /// An upper bound on the bytes of the normalized text, found without normalizing.
    fn at_most(&self, text: &str) -> usize {
        let mut n_bytes = text.len();
        for (nth, (normalizer, step)) in self.0.iter().enumerate() {
            n_bytes = match (step, nth) {
                (_, 0) => step.makes(normalizer, text),
                (Step::Replace(pattern, n), _) => {
                    let shortest = pattern.as_ref().map_or(1, |pattern| pattern.len().max(1));
                    let n_matches = n_bytes / shortest + 1;
                    n_bytes.saturating_add(n_matches.saturating_mul(*n))
                }
                (Step::Prepend(n), _) => n_bytes.saturating_add(*n),
                (Step::Times(n), _) => n_bytes.saturating_mul(*n),
                (Step::Table, _) => usize::MAX,
            };
        }
        n_bytes
    }
}

impl Step {
    fn of(normalizer: &NormalizerWrapper) -> Step {
        match normalizer {
            NormalizerWrapper::Replace(replace) => {
                let keys = serde_json::to_value(replace).unwrap_or_default();
                let pattern = keys.pointer("/pattern/String").and_then(Value::as_str);
                Step::Replace(pattern.map(str::to_owned), replace.content.len())
            }
            NormalizerWrapper::Prepend(prepend) => Step::Prepend(prepend.prepend.len()),
            NormalizerWrapper::Precompiled(_) => Step::Table,
            NormalizerWrapper::Lowercase(_)
            | NormalizerWrapper::NFC(_)
            | NormalizerWrapper::NFD(_) => Step::Times(3),
            NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => Step::Times(11),
            NormalizerWrapper::BertNormalizer(_) => Step::Times(9),
            NormalizerWrapper::ByteLevel(_) => Step::Times(2),
            _ => Step::Times(1),
        }
    }

    /// An upper bound on the bytes that the step makes of a text.
    fn makes(&self, normalizer: &NormalizerWrapper, text: &str) -> usize {
        let n_bytes = text.len();
        match (self, normalizer) {
            (Step::Replace(Some(pattern), n), _) => {
                let n_matches = text.matches(pattern).count();
                n_bytes.saturating_add(n_matches.saturating_mul(*n))
            }
            (Step::Replace(None, n), _) => n_bytes.saturating_add((n_bytes + 1).saturating_mul(*n)),
            (Step::Prepend(n), _) => n_bytes.saturating_add(*n),
            (Step::Times(n), _) => n_bytes.saturating_mul(*n),
            (Step::Table, NormalizerWrapper::Precompiled(table)) => by_table(table, text),
            (Step::Table, _) => usize::MAX,
        }
    }
}

/// Bytes that a table makes of a text. It looks for the shortest key at the beginning of a
/// character or of a few.
fn by_table(table: &Precompiled, text: &str) -> usize {
    let each = text.char_indices().map(|(at, c)| {
        let end = text.floor_char_boundary((at + KEY).min(text.len()));
        let made = table.transform(&text[at..end.max(at + c.len_utf8())]);
        made.map_or(c.len_utf8(), |made| made.len().max(c.len_utf8()))
    });
    each.fold(0, usize::saturating_add)
}

fn add_steps(normalizer: &NormalizerWrapper, steps: &mut Vec<(NormalizerWrapper, Step)>) {
    match normalizer {
        NormalizerWrapper::Sequence(all) => {
            all.as_ref().iter().for_each(|one| add_steps(one, steps));
        }
        one => steps.push((one.clone(), Step::of(one))),
    }
}

/// The most bytes that a decoder may make of one byte.
pub(super) fn of_decoder(decoder: Option<&DecoderWrapper>) -> usize {
    match decoder {
        Some(DecoderWrapper::Sequence(all)) => {
            let each = all.get_decoders().iter().map(|one| of_decoder(Some(one)));
            each.fold(1, usize::saturating_mul)
        }
        Some(DecoderWrapper::Replace(replace)) => {
            let keys = serde_json::to_value(replace).unwrap_or_default();
            let pattern = keys.pointer("/pattern/String").and_then(Value::as_str);
            match pattern {
                Some(pattern) if !pattern.is_empty() => {
                    replace.content.len().div_ceil(pattern.len()).max(1)
                }
                _ => 1 + replace.content.len(),
            }
        }
        _ => 1,
    }
}

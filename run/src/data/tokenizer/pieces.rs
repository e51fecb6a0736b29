//! Cuts text at boundaries between tokens.

use std::iter;

/// Usual size of a piece in bytes.
const AIM: usize = 16 << 10;
/// Largest size of a piece in bytes.
const MOST: usize = 64 << 10;
/// Bytes on either side of a cut that determine the tokens there.
const AROUND: usize = 64;
/// Number of places to try between words, and number within words.
const TRIES: usize = 64;

/// Cuts `text` into pieces of about 16 KiB, which together are the text.
///
/// Cuts are only where no token of GPT-2 can cross: between a single newline and the first word of
/// the next line, or before a single blank between words. So the ids of the pieces are those of the
/// whole text, unless 48 KiB have no such place.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    pieces_around(text, 0, &[], |_, _| true).map(|piece| piece.text())
}

/// A part of a text that is encoded on its own.
#[derive(Clone, Copy, Debug)]
pub struct TextPiece<'t> {
    with_before: &'t str,
    n_before: usize,
}

impl<'t> TextPiece<'t> {
    /// The text of the piece.
    pub fn text(&self) -> &'t str {
        &self.with_before[self.n_before..]
    }

    /// Returns the end of the text before the piece joined with the piece, and the number of bytes
    /// before the piece, 0 at the start of a text.
    pub(super) fn with_before(&self) -> (&'t str, usize) {
        (self.with_before, self.n_before)
    }
}

/// A token that is searched for before a text is cut into words.
#[derive(Clone, Debug)]
pub(super) struct WholeToken {
    pub(super) content: String,
    /// Whether blanks before it belong to it.
    pub(super) takes_before: bool,
    /// Whether blanks after it belong to it.
    pub(super) takes_behind: bool,
}

/// Cuts a text from byte `start` on into [pieces](pieces) that keep these tokens whole, unless one
/// is longer than a piece.
///
/// Cuts are where `parts(some, at)` is true, unless no such place is found: `some` is the text
/// around its byte `at`, with at least 64 bytes after it. So if the text goes on, the last piece
/// may get other cuts.
pub(super) fn pieces_around<'t>(
    text: &'t str,
    start: usize,
    whole: &'t [WholeToken],
    parts: impl Fn(&str, usize) -> bool,
) -> impl Iterator<Item = TextPiece<'t>> {
    let mut start = start;
    iter::from_fn(move || {
        let end = end(text, start, whole, &parts);
        let before = before(text, start, whole);
        let piece = TextPiece { with_before: &text[before..end], n_before: start - before };
        start = end;
        (!piece.text().is_empty()).then_some(piece)
    })
}

impl WholeToken {
    /// Returns true if a cut that is safe for other texts may tear the token.
    #[cfg(feature = "tokenizers")]
    pub(super) fn can_be_torn(&self) -> bool {
        let is_long = self.content.chars().count() > 1;
        !self.content.is_empty() && (is_long || self.takes_before || self.takes_behind)
    }

    /// Returns the start of the token, if a cut of `text` at `at` would tear it.
    fn torn(&self, text: &str, at: usize) -> Option<usize> {
        let len = self.content.len();
        let from = text.floor_char_boundary((at + 1).saturating_sub(len));
        let to = text.ceil_char_boundary((at + len - 1).min(text.len()));
        let mut found = text[from..to].match_indices(&self.content);
        let start = found.find_map(|(found, _)| {
            let start = from + found;
            (start < at && at < start + len).then_some(start)
        });
        start.filter(|start| *start > 0)
    }

    /// Returns true if a cut of `text` at `at` keeps the token and its blanks together.
    fn lets_cut(&self, text: &str, at: usize) -> bool {
        let takes = self.takes_behind && text[..at].ends_with(&self.content)
            || self.takes_before && text[at..].starts_with(&self.content);
        !takes && self.torn(text, at).is_none()
    }
}

/// Returns the end of the piece of `text` that begins at `start`.
fn end(
    text: &str,
    start: usize,
    whole: &[WholeToken],
    parts: &impl Fn(&str, usize) -> bool,
) -> usize {
    let (len, rest) = (text.len(), text.len() - start);
    if rest <= AIM + AROUND {
        return len;
    }
    let from = text.floor_char_boundary(start + AIM);
    let to = text.floor_char_boundary((start + MOST).min(len) - AROUND);
    let lets_cut = |at: &usize| whole.iter().all(|token| token.lets_cut(text, *at));
    let parts = |at: &usize| {
        let before = before(text, *at, whole);
        parts(&text[before..text.ceil_char_boundary(len.min(at + AROUND))], at - before)
    };
    let between_words = between_words(text, from, to).filter(lets_cut).take(TRIES).find(parts);
    let anywhere = || {
        let chars = (from..=to).rev().filter(|at| text.is_char_boundary(*at));
        chars.take(TRIES).filter(lets_cut).find(parts)
    };
    let torn = || {
        let begins = whole.iter().filter_map(|token| token.torn(text, to));
        begins.filter(|at| *at > start).min().unwrap_or(to)
    };
    between_words.or_else(|| (rest <= MOST).then_some(len)).or_else(anywhere).unwrap_or_else(torn)
}

/// Returns the places from `from` to `to` of `text` that no token of GPT-2 crosses.
fn between_words(text: &str, from: usize, to: usize) -> impl Iterator<Item = usize> {
    let rest = &text[from..];
    let before = iter::once(' ').chain(rest.chars());
    let after = rest.chars().skip(1);
    let chars = rest.char_indices().map(move |(at, c)| (from + at, c));
    let around = chars.take_while(move |(at, _)| *at < to).zip(before.zip(after));
    around.filter_map(|((at, c), (before, after))| match c {
        _ if before.is_whitespace() || after.is_whitespace() => None,
        '\n' => Some(at + 1),
        ' ' => Some(at),
        _ => None,
    })
}

/// Returns the start of the bytes before `at` that determine the tokens there.
fn before(text: &str, at: usize, whole: &[WholeToken]) -> usize {
    let from = text.floor_char_boundary(at.saturating_sub(AROUND));
    whole.iter().filter_map(|token| token.torn(text, from)).min().unwrap_or(from)
}

#[cfg(all(test, feature = "tiktoken"))]
mod tests {
    use proptest::prelude::*;
    use tiktoken_rs::r50k_base_singleton;

    use super::*;

    #[test]
    fn pieces_are_bounded() {
        for text in ["", "a", &"x".repeat(200_000), &"é ".repeat(70_000), &" \n".repeat(80_000)] {
            let all: Vec<&str> = pieces(text).collect();
            assert!(all.concat() == text && all.iter().all(|p| (1..=MOST).contains(&p.len())));
        }
    }

    #[test]
    fn a_token_longer_than_a_piece_is_cut() {
        let content = "a".to_string() + &"x".repeat(90_000);
        let text = content.repeat(3);
        let whole = [WholeToken { content, takes_before: false, takes_behind: false }];
        let all = pieces_around(&text, 0, &whole, |_, _| true).map(|piece| piece.text());
        assert!(all.collect::<String>() == text);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        /// The text is long enough for several pieces, and dense in tokens that a cut could tear.
        #[test]
        fn ids_of_pieces_are_those_of_the_whole(
            words in prop::collection::vec("[a-z]{1,3}|'s|[0-9]{1,2}|[ \\n\\t\u{a0}é!.]{1,3}", 400),
        ) {
            let text = words.concat().repeat(60);
            let gpt2 = r50k_base_singleton();
            let ids: Vec<u32> = pieces(&text).flat_map(|p| gpt2.encode_ordinary(p)).collect();
            prop_assert!(text.len() < AIM || pieces(&text).count() > 1);
            prop_assert_eq!(ids, gpt2.encode_ordinary(&text));
        }
    }
}

//! Cutting text where tokens end anyway.

use std::iter;

/// Bytes of a piece, if there is a place to cut.
const AIM: usize = 16 << 10;
/// The most bytes of a piece.
const MOST: usize = 64 << 10;
/// Bytes on either side of a cut that tell which tokens are there.
const AROUND: usize = 64;
/// How many places between words are tried, and how many within one.
const TRIES: usize = 64;

/// Cuts `text` into pieces of 16 KiB or so, which together are the text.
///
/// The cuts are where no token of GPT-2 can cross: between a single newline and the word before the next
/// line, or before a single blank between words. So the ids of the pieces are those of the whole text,
/// unless 48 KiB have no such place.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    pieces_around(text, 0, &[], |_, _| true).map(|piece| piece.text())
}

/// A part of a text that is encoded by itself.
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

    /// The end of the text before the piece and the piece as one text, and how many bytes of it are before the piece: none
    /// where a text begins.
    pub(super) fn with_before(&self) -> (&'t str, usize) {
        (self.with_before, self.n_before)
    }
}

/// A token that is found in a text before it is cut into words.
#[derive(Clone, Debug)]
pub(super) struct WholeToken {
    pub(super) content: String,
    /// Whether it takes in the blanks before it.
    pub(super) takes_before: bool,
    /// Whether it takes in the blanks behind it.
    pub(super) takes_behind: bool,
}

/// [Pieces](pieces) of a text from byte `start` on, in which these tokens stay whole, unless one is longer than a piece.
///
/// The cuts are where `parts(some, at)` is true, unless no such place is found: `some` is the text around byte `at` of it, and
/// shows at least 64 bytes behind it. So the last piece of a text that goes on may have other cuts then.
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
    /// Whether one of the places where texts are cut may be wrong for it.
    #[cfg(feature = "tokenizers")]
    pub(super) fn can_be_torn(&self) -> bool {
        let is_long = self.content.chars().count() > 1;
        !self.content.is_empty() && (is_long || self.takes_before || self.takes_behind)
    }

    /// Where the token begins that a cut of `text` at `at` would tear.
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

    /// Whether a cut of `text` at `at` leaves the token as it is, with its blanks.
    fn lets_cut(&self, text: &str, at: usize) -> bool {
        let takes = self.takes_behind && text[..at].ends_with(&self.content)
            || self.takes_before && text[at..].starts_with(&self.content);
        !takes && self.torn(text, at).is_none()
    }
}

/// Where the piece of `text` that begins at `start` ends.
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

/// Places from `from` to `to` of `text` that no token of GPT-2 crosses.
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

/// Where the bytes before `at` begin that tell which tokens are there.
fn before(text: &str, at: usize, whole: &[WholeToken]) -> usize {
    let from = text.floor_char_boundary(at.saturating_sub(AROUND));
    whole.iter().filter_map(|token| token.torn(text, from)).min().unwrap_or(from)
}

#[cfg(test)]
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

        /// Long enough for several pieces, dense enough in what a cut could tear.
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

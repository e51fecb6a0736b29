//! Cutting text where tokens end anyway.

/// Bytes of a piece, if there is a place to cut.
const AIM: usize = 16 << 10;
/// The most bytes of a piece.
const MOST: usize = 64 << 10;

/// Cuts `text` into pieces of 16 KiB or so, which together are the text.
///
/// The cuts are where no token of GPT-2 can cross: between a single newline and the word before the next
/// line, or before a single blank between words. So the ids of the pieces are those of the whole text,
/// unless 48 KiB have no such place.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    pieces_around(text, &[])
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

/// [Pieces](pieces) of a text in which these tokens stay whole, unless one is longer than a piece.
pub(super) fn pieces_around<'t>(
    text: &'t str,
    whole: &'t [WholeToken],
) -> impl Iterator<Item = &'t str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(end(rest, whole));
        rest = after;
        (!piece.is_empty()).then_some(piece)
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

/// Where the first piece of `text` ends.
fn end(text: &str, whole: &[WholeToken]) -> usize {
    if text.len() <= AIM {
        return text.len();
    }
    let from = text.floor_char_boundary(AIM);
    let to = text.floor_char_boundary(MOST);
    let mut around = text[from..].char_indices().peekable();
    let mut before = ' ';
    while let Some((at, c)) = around.next().filter(|(at, _)| from + at < to) {
        let after = around.peek().map_or(' ', |(_, c)| *c);
        if !before.is_whitespace() && !after.is_whitespace() {
            let cut = match c {
                '\n' => Some(from + at + 1),
                ' ' => Some(from + at),
                _ => None,
            };
            if let Some(cut) =
                cut.filter(|cut| whole.iter().all(|token| token.lets_cut(text, *cut)))
            {
                return cut;
            }
        }
        before = c;
    }
    whole.iter().filter_map(|token| token.torn(text, to)).min().unwrap_or(to)
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

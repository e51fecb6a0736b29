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
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(end(rest));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Where the first piece of `text` ends.
fn end(text: &str) -> usize {
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
            match c {
                '\n' => return from + at + 1,
                ' ' => return from + at,
                _ => {}
            }
        }
        before = c;
    }
    to
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

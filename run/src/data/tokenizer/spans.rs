//! Spans of tokens in their text.

use std::ops::Range;

use super::{Tokenizer, TokenizerError, gpt2};

/// An id, with the bytes of the text that its token stands for.
pub(crate) type Spanned = (u32, Range<usize>);

impl Tokenizer {
    /// Returns the [ids](Tokenizer::encode) of a text, each with the bytes that its token stands
    /// for. Tokens that share a character may all have the whole of it, and those of blanks none.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub(crate) fn encode_with_spans(&self, text: &str) -> Result<Vec<Spanned>, TokenizerError> {
        match self {
            Tokenizer::Bytes => {
                let bytes = text.bytes().enumerate();
                Ok(bytes.map(|(nth, byte)| (u32::from(byte), nth..nth + 1)).collect())
            }
            Tokenizer::Gpt2 => {
                let mut end = 0;
                let ids = gpt2::encode(text)?.into_iter().map(|id| {
                    let start = end;
                    end += gpt2::bytes(&[id]).len();
                    (id, start..end)
                });
                Ok(ids.collect())
            }
            Tokenizer::File(tokenizer) => tokenizer.encode_with_spans(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_follow_one_another() {
        let text = "A \u{e9}t\u{e9}\n\nand more";
        let known = [
            Tokenizer::Bytes,
            #[cfg(feature = "tiktoken")]
            Tokenizer::Gpt2,
        ];
        for tokenizer in known {
            let spans = tokenizer.encode_with_spans(text).unwrap();
            let ids: Vec<u32> = spans.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, tokenizer.encode(text).unwrap());
            assert_eq!((spans[0].1.start, spans.last().unwrap().1.end), (0, text.len()));
            assert!(spans.windows(2).all(|pair| pair[0].1.end == pair[1].1.start));
        }
    }
}

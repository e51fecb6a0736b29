//! Ends of tokens in their text.

use super::{Tokenizer, TokenizerError, gpt2};

impl Tokenizer {
    /// Returns the [ids](Tokenizer::encode) of a text, each with the byte at which its token ends.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub(crate) fn encode_with_ends(&self, text: &str) -> Result<Vec<(u32, usize)>, TokenizerError> {
        match self {
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).zip(1..).collect()),
            Tokenizer::Gpt2 => {
                let mut end = 0;
                let ids = gpt2::encode(text)?.into_iter().map(|id| {
                    end += gpt2::bytes(&[id]).len();
                    (id, end)
                });
                Ok(ids.collect())
            }
            Tokenizer::File(tokenizer) => tokenizer.encode_with_ends(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_end_where_their_text_ends() {
        let text = "A \u{e9}t\u{e9}\n\nand more";
        let known = [
            Tokenizer::Bytes,
            #[cfg(feature = "tiktoken")]
            Tokenizer::Gpt2,
        ];
        for tokenizer in known {
            let ends = tokenizer.encode_with_ends(text).unwrap();
            let ids: Vec<u32> = ends.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, tokenizer.encode(text).unwrap());
            assert_eq!(ends.last().unwrap().1, text.len());
            assert!(ends.is_sorted_by(|a, b| a.1 < b.1));
        }
    }
}

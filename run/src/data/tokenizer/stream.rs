//! Decoding of ids that arrive one by one.

use super::{Tokenizer, TokenizerError};

/// Returns the text of ids as soon as later ids cannot change it. All returned texts together are
/// what [`Tokenizer::decode`] returns for all ids.
pub struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    /// Bytes not returned yet, less than a character, for a tokenizer whose ids are bytes.
    bytes: Vec<u8>,
    /// For a tokenizer from a file: the ids of the last returned text and all later ones, because
    /// the text of a token may depend on the token before it.
    ids: Vec<u32>,
    /// Number of these ids whose text was returned.
    n_given: usize,
}

impl<'t> Stream<'t> {
    /// Starts before the first id.
    pub fn new(tokenizer: &'t Tokenizer) -> Stream<'t> {
        Stream { tokenizer, bytes: Vec::new(), ids: Vec::new(), n_given: 0 }
    }

    /// Returns the text that further ids add.
    ///
    /// # Errors
    /// If the tokenizer's file is inconsistent, as in [`Tokenizer::decode`].
    pub fn push(&mut self, ids: &[u32]) -> Result<String, TokenizerError> {
        if let Some(bytes) = self.tokenizer.bytes(ids) {
            self.bytes.extend(bytes);
            let end = self.bytes.len() - incomplete(&self.bytes);
            let text = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
            self.bytes.drain(..end);
            return Ok(text);
        }
        self.ids.extend(ids);
        let text = self.new_text()?;
        if text.is_empty() || text.ends_with('\u{fffd}') || self.ends_with_a_byte() {
            return Ok(String::new());
        }
        self.ids.drain(..self.n_given);
        self.n_given = self.ids.len();
        Ok(text)
    }

    /// Returns the text that was held back, after the last id.
    ///
    /// # Errors
    /// If the tokenizer's file is inconsistent, as in [`Tokenizer::decode`].
    pub fn rest(self) -> Result<String, TokenizerError> {
        Ok(self.new_text()? + &String::from_utf8_lossy(&self.bytes))
    }

    fn new_text(&self) -> Result<String, TokenizerError> {
        let given = self.tokenizer.decode(&self.ids[..self.n_given])?;
        let text = self.tokenizer.decode(&self.ids)?;
        Ok(text.strip_prefix(&given).unwrap_or_default().to_string())
    }

    /// Returns true if the last token is a byte such as `<0xE2>`: a row of them is text only as a
    /// whole.
    fn ends_with_a_byte(&self) -> bool {
        let (Tokenizer::File(tokenizer), Some(last)) = (self.tokenizer, self.ids.last()) else {
            return false;
        };
        tokenizer.token_of(*last).is_some_and(|token| token.starts_with("<0x"))
    }
}

/// Number of bytes at the end that may become a character with the bytes that follow.
fn incomplete(bytes: &[u8]) -> usize {
    let end = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(end) {
        Err(e) if e.error_len().is_none() => end.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    /// A tokenizer of words and the bytes of a character.
    const WORDS: &str = r###"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": DECODER,
        "model": {"type": "WordLevel", "unk_token": "the", "vocab":
        {"the": 0, "pi": 1, "##pe": 2, "<0xE2>": 3, "<0x82>": 4, "<0xAC>": 5}}}"###;

    /// Returns the text that each id adds, and the rest at the end.
    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
        let mut stream = Stream::new(tokenizer);
        let mut texts: Vec<String> = ids.iter().map(|id| stream.push(&[*id]).unwrap()).collect();
        texts.push(stream.rest().unwrap());
        texts
    }

    #[test]
    fn characters_are_given_whole() {
        let ids = Tokenizer::Bytes.encode("aé\u{1f600}").unwrap();
        assert_eq!(streamed(&Tokenizer::Bytes, &ids), ["a", "", "é", "", "", "", "\u{1f600}", ""]);
        let torn = [0xe6, 0x96, 0x41, 0xff, 0xf0, 0x9f];
        assert_eq!(
            streamed(&Tokenizer::Bytes, &torn),
            ["", "", "\u{fffd}A", "\u{fffd}", "", "", "\u{fffd}"]
        );
    }

    #[test]
    fn tokens_of_files_are_given_as_they_stand_behind_others() {
        let folder = tempfile::TempDir::new().unwrap();
        for (decoder, wanted) in [
            ("null", ["the", " pi", " ##pe", "", "", "", " <0xE2> <0x82> <0xAC> the", ""]),
            (
                r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###,
                ["the", " pi", "pe", "", "", "", " <0xE2> <0x82> <0xAC> the", ""],
            ),
            (r#"{"type": "ByteFallback"}"#, ["the", "pi", "##pe", "", "", "", "€the", ""]),
        ] {
            let path = folder.path().join("tokenizer.json");
            let content = WORDS.replace("DECODER", decoder);
            fs::write(&path, content).unwrap();
            let tokenizer = Tokenizer::read(&path).unwrap();
            assert_eq!(streamed(&tokenizer, &[0, 1, 2, 3, 4, 5, 0]), wanted, "{decoder}");
            for ids in [&[0, 3, 4, 0, 5, 1][..], &[3, 3, 9, 2, 0], &[9, 4, 5], &[9], &[]] {
                assert_eq!(
                    streamed(&tokenizer, ids).concat(),
                    tokenizer.decode(ids).unwrap(),
                    "{decoder}: {ids:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn all_that_is_given_is_the_text(ids in prop::collection::vec(0u32..300, 0..40), text in "\\PC{0,20}") {
            for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
                let ids = [ids.clone(), tokenizer.encode(&text).unwrap()].concat();
                prop_assert_eq!(streamed(&tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
            }
        }
    }
}

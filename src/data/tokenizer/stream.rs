//! The text of ids that come one by one.

use super::{Tokenizer, TokenizerError};

/// Gives the text of ids as soon as later ones cannot change it: all that it gave is what
/// [`Tokenizer::decode`] makes of all ids.
pub struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    /// What was not given yet, where each id is some bytes: less than a character.
    bytes: Vec<u8>,
    /// Of a file's tokenizer, the ids from the last but one text on that was given: what a token stands for may
    /// follow from the one before it.
    ids: Vec<u32>,
    /// How many of these ids were given.
    n_given: usize,
}

impl<'t> Stream<'t> {
    /// Before the first id.
    pub fn new(tokenizer: &'t Tokenizer) -> Stream<'t> {
        Stream { tokenizer, bytes: Vec::new(), ids: Vec::new(), n_given: 0 }
    }

    /// What further ids add to the text.
    ///
    /// # Errors
    /// If the tokenizer's file is inconsistent, as [`Tokenizer::decode`].
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

    /// What was kept back, where no id comes any more.
    ///
    /// # Errors
    /// If the tokenizer's file is inconsistent, as [`Tokenizer::decode`].
    pub fn rest(self) -> Result<String, TokenizerError> {
        Ok(self.new_text()? + &String::from_utf8_lossy(&self.bytes))
    }

    fn new_text(&self) -> Result<String, TokenizerError> {
        let given = self.tokenizer.decode(&self.ids[..self.n_given])?;
        let text = self.tokenizer.decode(&self.ids)?;
        Ok(text.strip_prefix(&given).unwrap_or_default().to_string())
    }

    /// Tokens such as `<0xE2>` in a row are a text or none as a whole.
    fn ends_with_a_byte(&self) -> bool {
        let (Tokenizer::File(tokenizer), Some(last)) = (self.tokenizer, self.ids.last()) else {
            return false;
        };
        tokenizer.token_of(*last).is_some_and(|token| token.starts_with("<0x"))
    }
}

/// How many bytes at the end may become a character with those that follow.
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

    /// Words, and the bytes of a character.
    const WORDS: &str = r###"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": DECODER,
        "model": {"type": "WordLevel", "unk_token": "the", "vocab":
        {"the": 0, "pi": 1, "##pe": 2, "<0xE2>": 3, "<0x82>": 4, "<0xAC>": 5}}}"###;

    /// What each id adds, and what is left then.
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

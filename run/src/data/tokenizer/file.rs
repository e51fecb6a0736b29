//! Reads a `tokenizer.json` with Hugging Face's `tokenizers`.

mod growth;

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};

use serde::de::IgnoredAny;
use tokenizers::{Encoding, Token, Tokenizer};

use super::TokenizerError;
use super::pieces::WholeToken;
use super::spans::Spanned;
use growth::{Growth, MOST, of_decoder};

/// A tokenizer from a file. Clones share it.
#[derive(Clone, Debug)]
pub struct FileTokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Content of the file: it is copied to the model after hours of training, when the file may be
    /// gone.
    content: Arc<[u8]>,
    whole: Arc<[WholeToken]>,
    growth: Arc<Growth>,
}

impl FileTokenizer {
    /// Parses the content of a `tokenizer.json`, or returns an error message. Truncation and
    /// padding are ignored: they are for batches.
    pub(super) fn parse(content: &[u8]) -> Result<FileTokenizer, String> {
        // The library panics on some files, e.g. on those that are not JSON.
        serde_json::from_slice::<IgnoredAny>(content).map_err(|e| e.to_string())?;
        let parsed = silently(|| Tokenizer::from_bytes(content));
        let parsed = parsed.ok_or("it is inconsistent")?;
        let mut tokenizer = parsed.map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        let added = tokenizer.get_added_tokens_decoder().into_values();
        let whole = added.map(|token| WholeToken {
            takes_before: token.lstrip,
            takes_behind: token.rstrip,
            content: token.content,
        });
        let whole = whole.filter(WholeToken::can_be_torn).collect();
        if of_decoder(tokenizer.get_decoder()) > MOST {
            return Err(format!("its decoder would make more than {MOST} bytes of one"));
        }
        let growth = Arc::new(Growth::of(tokenizer.get_normalizer()));
        Ok(FileTokenizer { tokenizer: Arc::new(tokenizer), content: content.into(), whole, growth })
    }

    /// Returns an error message if the content of a `tokenizer.json` is invalid.
    pub(super) fn check(content: &[u8]) -> Result<(), String> {
        FileTokenizer::parse(content).map(drop)
    }

    pub(super) fn content(&self) -> &[u8] {
        &self.content
    }

    pub(super) fn vocab(&self) -> usize {
        let ids = self.tokenizer.get_vocab(true).into_values();
        ids.max().map_or(0, |highest| highest as usize + 1)
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub(super) fn token_of(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Tokens that a cut of a text must not tear, or separate from the blanks that belong to them.
    pub(super) fn whole(&self) -> &[WholeToken] {
        &self.whole
    }

    /// The ids that the post-processor puts before a single text.
    pub(super) fn beginning(&self) -> Result<Vec<u32>, TokenizerError> {
        let probe = Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
        let probed = asked(|| self.tokenizer.post_process(probe, None, true))?;
        let marked = probed.get_ids().iter().zip(probed.get_special_tokens_mask());
        Ok(marked.take_while(|(_, is_special)| **is_special == 1).map(|(id, _)| *id).collect())
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.must_be_bounded(text)?;
        Ok(asked(|| self.tokenizer.encode_fast(text, false))?.get_ids().to_vec())
    }

    /// Returns the ids of a text, each with the bytes that its token stands for.
    pub(super) fn encode_with_spans(&self, text: &str) -> Result<Vec<Spanned>, TokenizerError> {
        self.must_be_bounded(text)?;
        let encoding = asked(|| self.tokenizer.encode(text, false))?;
        let spans = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(encoding.get_ids().iter().copied().zip(spans).collect())
    }

    fn must_be_bounded(&self, text: &str) -> Result<(), TokenizerError> {
        let inconsistent = || TokenizerError::Encode(INCONSISTENT.into());
        if !silently(|| self.growth.is_bounded(text)).ok_or_else(inconsistent)? {
            let reason = format!(
                "the normalizer of its tokenizer.json makes more than {MOST} bytes of each"
            );
            return Err(TokenizerError::Encode(reason));
        }
        Ok(())
    }

    /// Returns the ids of a text after those of its first `start` bytes, or `None` if these bytes
    /// have other ids when they stand alone.
    pub(super) fn encode_from(
        &self,
        text: &str,
        start: usize,
    ) -> Result<Option<Vec<u32>>, TokenizerError> {
        let mut ids = self.encode(text)?;
        // Some tokenizers make a token of an empty text.
        let before = if start > 0 { self.encode(&text[..start])? } else { Vec::new() };
        Ok(ids.starts_with(&before).then(|| ids.split_off(before.len())))
    }

    pub(super) fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        match silently(|| self.tokenizer.decode(ids, false)) {
            Some(text) => Ok(text.unwrap_or_default()),
            None => Err(TokenizerError::Decode(INCONSISTENT.into())),
        }
    }
}

/// The error for a file that makes the library panic.
const INCONSISTENT: &str = "its tokenizer.json is inconsistent";

/// Calls the library, and turns a failure or panic into an error.
fn asked<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, TokenizerError> {
    let made = silently(work).ok_or_else(|| TokenizerError::Encode(INCONSISTENT.into()))?;
    made.map_err(|error| TokenizerError::Encode(error.to_string()))
}

thread_local! {
    /// Whether panics of this thread are not reported.
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of `work`, or `None` if it panics; the panic is not reported.
fn silently<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_SILENT.get() {
                tell(panic);
            }
        }));
    });
    let before = IS_SILENT.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    IS_SILENT.set(before);
    done
}

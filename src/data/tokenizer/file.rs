//! What a `tokenizer.json` says, by Hugging Face's `tokenizers`.

use std::panic::{UnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::IgnoredAny;
use tokenizers::Tokenizer;

use super::TokenizerError;

/// The tokenizer of a file. Clones share it.
#[derive(Clone, Debug)]
pub struct FileTokenizer {
    tokenizer: Arc<Tokenizer>,
    /// What the file holds: a model takes it along after hours of training, when the file may be gone.
    content: Arc<[u8]>,
}

impl FileTokenizer {
    /// Reads the content of a `tokenizer.json`; says what is wrong with it. Truncation and padding are left aside: they
    /// are for batches.
    pub(super) fn parse(content: &[u8]) -> Result<FileTokenizer, String> {
        // The library panics on some files: on what is no JSON, for one.
        serde_json::from_slice::<IgnoredAny>(content).map_err(|e| e.to_string())?;
        let parsed = silently(|| Tokenizer::from_bytes(content));
        let parsed = parsed.ok_or("it is inconsistent")?;
        let mut tokenizer = parsed.map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        Ok(FileTokenizer { tokenizer: Arc::new(tokenizer), content: content.into() })
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

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match self.tokenizer.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(TokenizerError::Encode(error.to_string())),
        }
    }

    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }
}

/// What `work` gives unless it panics, which nobody is told.
fn silently<T>(work: impl FnOnce() -> T + UnwindSafe) -> Option<T> {
    static HOOK: Mutex<()> = Mutex::new(()); // one at a time, or hooks were put back in another order
    let _own = HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let done = catch_unwind(work).ok();
    set_hook(hook);
    done
}

//! Replaces `gpt2` in a build without its vocabulary.

use super::TokenizerError;

/// Refuses any text: the vocabulary is not in this build.
pub(super) fn encode(_: &str) -> Result<Vec<u32>, TokenizerError> {
    Err(TokenizerError::NotBuilt)
}

/// Returns the mark of unreadable text for each id: the vocabulary is not in this build.
pub(super) fn bytes(ids: &[u32]) -> Vec<u8> {
    "\u{fffd}".repeat(ids.len()).into_bytes()
}

//! GPT-2's byte-pair encoding.

use super::TokenizerError;

/// Returns the ids of a text. It is cut into pieces, because the library fails on a million blanks
/// in a row.
pub(super) fn encode(text: &str) -> Result<Vec<u32>, TokenizerError> {
    let pieces = super::pieces(text);
    Ok(pieces.flat_map(|piece| vocabulary().encode_ordinary(piece)).collect())
}

/// Returns the bytes of ids, one after another; ids outside the vocabulary have none.
pub(super) fn bytes(ids: &[u32]) -> Vec<u8> {
    ids.iter().filter_map(|id| vocabulary().decode_bytes(&[*id]).ok()).flatten().collect()
}

fn vocabulary() -> &'static tiktoken_rs::CoreBPE {
    tiktoken_rs::r50k_base_singleton() // named for its 50k merges; the same as `gpt2`
}

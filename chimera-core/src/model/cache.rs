//! What attention needs of the tokens that a text began with.

/// Queries, keys and values of the tokens that a decoder has seen, see [`DecoderStage::follow`](super::DecoderStage::follow).
#[derive(Clone, Debug)]
pub struct KvCache<T> {
    len: usize,
    pub(super) blocks: Vec<T>,
}

impl<T> KvCache<T> {
    /// A cache that has seen no token.
    pub fn new() -> KvCache<T> {
        KvCache { len: 0, blocks: Vec::new() }
    }

    /// How many tokens it has seen.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has seen no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Counts `n` more tokens as seen.
    pub(super) fn advance(&mut self, n: usize) {
        self.len += n;
    }
}

impl<T> Default for KvCache<T> {
    fn default() -> KvCache<T> {
        KvCache::new()
    }
}

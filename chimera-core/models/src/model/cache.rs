//! What attention needs of the tokens that a text began with.

use std::collections::BTreeMap;

/// Queries, keys and values of the tokens of a text that a stage has seen, see
/// [`DecoderStage::follow`](super::DecoderStage::follow).
#[derive(Clone, Debug)]
pub struct KvCache<T> {
    len: usize,
    pub(super) blocks: BTreeMap<usize, T>,
}

impl<T> KvCache<T> {
    /// A cache that has seen no token.
    pub fn new() -> KvCache<T> {
        KvCache { len: 0, blocks: BTreeMap::new() }
    }

    /// How many tokens it has seen.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has seen no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Default for KvCache<T> {
    fn default() -> KvCache<T> {
        KvCache::new()
    }
}

/// Texts that go on side by side: how many new rows each has, and what came before them.
pub(super) struct Texts<T> {
    pub(super) rows: Vec<usize>,
    pub(super) caches: Vec<KvCache<T>>,
}

impl<T> Texts<T> {
    /// The caches, which have seen the new rows.
    pub(super) fn seen(mut self) -> Vec<KvCache<T>> {
        self.caches.iter_mut().zip(self.rows).for_each(|(cache, n)| cache.len += n);
        self.caches
    }
}

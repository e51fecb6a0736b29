//! The KV cache: attention's state for the earlier tokens of a text.

use std::collections::BTreeMap;

/// Queries, keys and values of the tokens of a text that a stage has seen, see
/// [`DecoderStage::follow`](crate::model::DecoderStage::follow).
#[derive(Clone, Debug)]
pub struct KvCache<T> {
    len: usize,
    pub(crate) blocks: BTreeMap<usize, T>,
}

impl<T> KvCache<T> {
    /// Returns an empty cache.
    pub fn new() -> KvCache<T> {
        KvCache { len: 0, blocks: BTreeMap::new() }
    }

    /// Returns the number of tokens that it has seen.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has seen no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Default for KvCache<T> {
    fn default() -> KvCache<T> {
        KvCache::new()
    }
}

/// Texts that continue side by side: their numbers of new rows, and their caches.
pub(crate) struct Texts<T> {
    pub(crate) rows: Vec<usize>,
    pub(crate) caches: Vec<KvCache<T>>,
}

impl<T> Texts<T> {
    /// Returns the caches, after they have seen the new rows.
    pub(crate) fn seen(mut self) -> Vec<KvCache<T>> {
        self.caches.iter_mut().zip(self.rows).for_each(|(cache, n)| cache.len += n);
        self.caches
    }
}

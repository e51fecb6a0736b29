//! Going through a text token by token: what attention needs of the tokens before is kept, not computed again.

use crate::device::Result;

/// A model without its head that goes through one text in steps.
pub trait Decoder<T> {
    /// What the blocks make of `ids`, which follow the tokens that `cache` has seen: `[ids.len(), hidden]`. `w` holds
    /// the tensors of the stage without head, and the cache has seen `ids` too afterwards.
    ///
    /// # Panics
    /// If the text is longer than the decoder's context then.
    fn follow(&self, w: &[T], ids: &[u32], cache: &mut KvCache<T>) -> Result<T>;
}

/// Queries, keys and values of the tokens that a [`Decoder`] has seen.
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

//! Token ids at the width in which they came.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use super::DataError;

/// A sequence of token ids, at one, two or four bytes each.
#[derive(Clone, Debug)]
pub enum Tokens {
    /// Text: each byte is an id.
    Bytes(Cow<'static, [u8]>),
    /// Ids below 65,536.
    U16(Vec<u16>),
    /// Any ids.
    U32(Vec<u32>),
}

impl Tokens {
    /// Number of ids.
    pub fn len(&self) -> usize {
        match self {
            Tokens::Bytes(ids) => ids.len(),
            Tokens::U16(ids) => ids.len(),
            Tokens::U32(ids) => ids.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the ids of `range`, which must be within, to `to`.
    pub fn extend(&self, to: &mut Vec<u32>, range: Range<usize>) {
        match self {
            Tokens::Bytes(ids) => to.extend(ids[range].iter().map(|&id| u32::from(id))),
            Tokens::U16(ids) => to.extend(ids[range].iter().map(|&id| u32::from(id))),
            Tokens::U32(ids) => to.extend_from_slice(&ids[range]),
        }
    }

    /// Refuses ids of `vocab` and above among those from `start` on, which came from `path`.
    pub(super) fn check(&self, path: &Path, start: usize, vocab: usize) -> Result<(), DataError> {
        let first = match self {
            Tokens::Bytes(_) if vocab > usize::from(u8::MAX) => None,
            Tokens::Bytes(ids) => beyond(&ids[start..], vocab),
            Tokens::U16(ids) => beyond(&ids[start..], vocab),
            Tokens::U32(ids) => beyond(&ids[start..], vocab),
        };
        match first {
            None => Ok(()),
            Some((position, id)) => {
                Err(DataError::Vocabulary { path: path.to_path_buf(), position, id, vocab })
            }
        }
    }
}

/// Position and value of the first id that is not below `vocab`.
fn beyond<I: Copy + Into<u32>>(ids: &[I], vocab: usize) -> Option<(usize, u32)> {
    let ids = ids.iter().map(|&id| id.into());
    ids.enumerate().find(|&(_, id)| id as usize >= vocab)
}

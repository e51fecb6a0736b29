//! A file for offloaded tensors: a processor has no other memory to move them to.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};

use pulp::bytemuck::{cast_slice, cast_slice_mut};

/// The name of the file in error messages.
pub(crate) const IN_WORDS: &str = "the file for activations that are moved out of memory";

/// An unnamed file in the system's folder for temporary files, created for the first stored tensor.
/// Its blocks are reused, so it grows to the largest amount that is offloaded at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilePool(Arc<Mutex<Option<Blocks>>>);

#[derive(Debug)]
struct Blocks {
    file: File,
    end: u64,
    /// Offsets of free blocks, by their length in bytes.
    free: BTreeMap<u64, Vec<u64>>,
}

/// Elements in a block of a pool, which is freed when this is dropped.
pub(crate) struct Stored {
    pool: FilePool,
    at: u64,
    n_elements: usize,
}

impl FilePool {
    /// Creates the file if it does not exist.
    pub(crate) fn open(&self) -> io::Result<()> {
        self.with(|_| Ok(()))
    }

    pub(crate) fn store(&self, elements: &[f32]) -> io::Result<Stored> {
        let bytes: &[u8] = cast_slice(elements);
        let at = self.with(|blocks| {
            let len = bytes.len() as u64;
            let at = blocks.free.get_mut(&len).and_then(Vec::pop).unwrap_or_else(|| {
                blocks.end += len;
                blocks.end - len
            });
            blocks.file.seek(SeekFrom::Start(at))?;
            blocks.file.write_all(bytes)?;
            Ok(at)
        })?;
        Ok(Stored { pool: self.clone(), at, n_elements: elements.len() })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Blocks) -> io::Result<T>) -> io::Result<T> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.is_none() {
            let file = tempfile::tempfile()?;
            *blocks = Some(Blocks { file, end: 0, free: BTreeMap::new() });
        }
        blocks.as_mut().map_or_else(|| Err(io::ErrorKind::NotFound.into()), act)
    }
}

impl Stored {
    pub(crate) fn load(&self) -> io::Result<Vec<f32>> {
        let mut elements = vec![0.0f32; self.n_elements];
        self.pool.with(|blocks| {
            blocks.file.seek(SeekFrom::Start(self.at))?;
            blocks.file.read_exact(cast_slice_mut(&mut elements))
        })?;
        Ok(elements)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let len = (self.n_elements * size_of::<f32>()) as u64;
        let _ = self.pool.with(|blocks| {
            blocks.free.entry(len).or_default().push(self.at);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_used_again() {
        let pool = FilePool::default();
        let first = pool.store(&[1.0, f32::NAN, -0.0]).expect("stored");
        let second = pool.store(&[2.0; 3]).expect("stored");
        assert_eq!((first.at, second.at), (0, 12));
        let bits = |stored: &Stored| -> Vec<u32> {
            stored.load().expect("loaded").into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(&first), [1.0, f32::NAN, -0.0].map(f32::to_bits));
        drop(first);
        let third = pool.store(&[3.0; 3]).expect("stored");
        assert_eq!((third.at, bits(&second)), (0, vec![2.0f32.to_bits(); 3]));
    }
}

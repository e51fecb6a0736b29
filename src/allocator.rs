//! The allocator of the command.
//!
//! A training step frees nearly all the memory that it took, and the next step takes it again. An
//! allocator that returns it to the system in between pays one page fault per page. One that keeps
//! it in size classes holds up to twice what is in use. Here large blocks come from ranges of
//! addresses that are split on demand and joined when freed, so the process holds hardly more than
//! its peak use.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, PoisonError};

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Blocks of at least this many bytes are large.
const LARGE: usize = 1 << 16;
/// Large blocks start at multiples of this, a cache line, and their lengths are multiples of it.
const LINE: usize = 128;
/// Bytes of a huge page, which takes one fault and one entry of the page tables, where the system
/// has them.
const HUGE_PAGE: usize = 1 << 21;
/// Bytes of address space reserved at once. They take no memory until they are written.
const RESERVE: usize = 1 << 30;

/// Takes large blocks from [`Ranges`] and the others from mimalloc.
pub(crate) struct Allocator(Mutex<Ranges>);

impl Allocator {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Ranges::new()))
    }

    /// Returns a block, and true if it is known to be zero.
    fn take(&self, layout: Layout) -> Option<(*mut u8, bool)> {
        let len = layout.size().checked_next_multiple_of(LINE)?;
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, is_zero) = ranges.take(len)?;
        Some((with_exposed_provenance_mut(start), is_zero))
    }
}

// SAFETY: a block is a range that overlaps no other block, or it is one of mimalloc's.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return self.take(layout).map_or(null_mut(), |(start, _)| start);
        }
        // SAFETY: the caller promises what mimalloc asks for.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            // SAFETY: as in `alloc`.
            return unsafe { MiMalloc.alloc_zeroed(layout) };
        }
        let Some((start, is_zero)) = self.take(layout) else { return null_mut() };
        if !is_zero {
            // SAFETY: the block has that many bytes, and nobody else uses it.
            unsafe { start.write_bytes(0, layout.size()) };
        }
        start
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            return ranges.free(block.expose_provenance(), layout.size().next_multiple_of(LINE));
        }
        // SAFETY: mimalloc owns the blocks of this layout.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller has made sure that the size is valid for a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_large(layout) && !is_large(wanted) {
            // SAFETY: mimalloc owns the blocks of this layout.
            return unsafe { MiMalloc.realloc(block, layout, size) };
        }
        // SAFETY: both blocks have at least as many bytes as are copied, and they do not overlap.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= LINE
}

/// The address ranges that are not in use.
struct Ranges {
    /// Lengths of ranges that were in use before, by start; no two are neighbours.
    free: BTreeMap<usize, usize>,
    /// Lengths and starts of the free ranges, shortest first.
    by_len: BTreeSet<(usize, usize)>,
    /// Start and end of the range that was never in use.
    untouched: [usize; 2],
}

impl Ranges {
    const fn new() -> Self {
        Self { free: BTreeMap::new(), by_len: BTreeSet::new(), untouched: [0; 2] }
    }

    /// Returns the start of `len` bytes, and true if they were never in use. If no range is large
    /// enough, the last one grows by the missing bytes.
    fn take(&mut self, len: usize) -> Option<(usize, bool)> {
        if let Some((start, found)) = self.fit(len) {
            self.remove(start, found);
            if found > len {
                self.insert(start + len, found - len);
            }
            return Some((start, false));
        }
        let last = self.free.range(..self.untouched[0]).next_back();
        let (mut start, mut had) = (self.untouched[0], 0);
        if let Some((&before, &its_len)) = last
            && before + its_len == start
        {
            (start, had) = (before, its_len);
        }
        if self.untouched[1] - self.untouched[0] < len - had {
            self.reserve(len)?;
            (start, had) = (self.untouched[0], 0);
        }
        if had > 0 {
            self.remove(start, had);
        }
        self.untouched[0] = start + len;
        Some((start, had == 0))
    }

    /// Returns the free range to take `len` bytes from: the smallest that is large enough if hardly
    /// anything of it would remain, otherwise the first. The rest of a cut range is only useful for
    /// smaller blocks, so the ranges at the front are cut and the last ones stay whole.
    fn fit(&self, len: usize) -> Option<(usize, usize)> {
        let &(smallest, start) = self.by_len.range((len, 0)..).next()?;
        if smallest - len <= len / 8 {
            return Some((start, smallest));
        }
        let first = self.free.iter().find(|(_, its_len)| **its_len >= len)?;
        Some((*first.0, *first.1))
    }

    /// Frees a block and joins it with its neighbours.
    fn free(&mut self, mut start: usize, mut len: usize) {
        if let Some((&before, &its_len)) = self.free.range(..start).next_back()
            && before + its_len == start
        {
            self.remove(before, its_len);
            (start, len) = (before, its_len + len);
        }
        if let Some(its_len) = self.free.get(&(start + len)).copied() {
            self.remove(start + len, its_len);
            len += its_len;
        }
        self.insert(start, len);
    }

    /// Reserves at least `len` bytes of address space.
    fn reserve(&mut self, len: usize) -> Option<()> {
        let smallest = len.checked_add(HUGE_PAGE)?;
        // A limit on addresses may allow what is needed now, but not what is reserved for later.
        let (found, size) = [smallest.max(RESERVE), smallest]
            .into_iter()
            .find_map(|size| Some((map(size)?, size)))?;
        let [start, end] = std::mem::replace(
            &mut self.untouched,
            [found.next_multiple_of(HUGE_PAGE), found + size],
        );
        if start < end {
            self.free(start, end - start);
        }
        Some(())
    }

    fn insert(&mut self, start: usize, len: usize) {
        self.free.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.free.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

/// Maps addresses whose pages are zero and take memory when they are written.
fn map(size: usize) -> Option<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the system chooses addresses that nothing else uses.
    let start =
        unsafe { mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let start = start.ok()?;
    #[cfg(target_os = "linux")]
    // SAFETY: it changes the size of pages, not their content.
    let _ = unsafe { rustix::mm::madvise(start, size, rustix::mm::Advice::LinuxHugepage) };
    Some(start.expose_provenance())
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// A block filled with one byte.
    struct Block {
        start: *mut u8,
        layout: Layout,
        byte: u8,
    }

    impl Block {
        fn is_all(&self, byte: u8) -> bool {
            // SAFETY: nobody writes to the block meanwhile, and all of it was written.
            let bytes = unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) };
            bytes.iter().all(|other| *other == byte)
        }
    }

    /// Blocks with the sizes of a training run, including small ones, are allocated, resized and
    /// freed in random order.
    #[test]
    fn blocks_are_apart_and_keep_what_is_in_them() {
        let random = &mut ChaCha8Rng::seed_from_u64(1);
        let allocator = Allocator::new();
        let mut blocks: Vec<Block> = Vec::new();
        for turn in 0..4000 {
            let byte = turn as u8 | 1;
            let size = 64 << random.random_range(0..13);
            let size = size + random.random_range(0..size);
            if blocks.len() < 40 || random.random_bool(0.4) {
                let layout = Layout::from_size_align(size, 1 << random.random_range(0..9)).unwrap();
                // SAFETY: the size is not zero.
                let start = unsafe { allocator.alloc_zeroed(layout) };
                assert_eq!(start.align_offset(layout.align()), 0);
                let block = Block { start, layout, byte };
                assert!(block.is_all(0));
                // SAFETY: the block has that many bytes.
                unsafe { start.write_bytes(byte, size) };
                blocks.push(block);
                continue;
            }
            let mut block = blocks.swap_remove(random.random_range(0..blocks.len()));
            assert!(block.is_all(block.byte));
            if random.random_bool(0.3) {
                let (old, kept) = (block.layout, block.layout.size().min(size));
                block.layout = Layout::from_size_align(size, old.align()).unwrap();
                // SAFETY: the block has this layout, and what lies beyond the kept part is written
                // before it is read.
                unsafe {
                    block.start = allocator.realloc(block.start, old, size);
                    block.start.add(kept).write_bytes(block.byte, size - kept);
                }
                assert!(block.is_all(block.byte));
                blocks.push(block);
            } else {
                // SAFETY: the block has this layout and is not used again.
                unsafe { allocator.dealloc(block.start, block.layout) };
            }
        }
        for block in blocks {
            // SAFETY: as above.
            unsafe { allocator.dealloc(block.start, block.layout) };
        }
        let ranges = allocator.0.into_inner().unwrap();
        assert_eq!(ranges.free.len(), 1, "all that was taken is one range again");
    }

    /// The blocks of a step are split from blocks that the step before has freed.
    #[test]
    fn ranges_are_split_joined_and_grown() {
        let mut ranges = Ranges::new();
        let [a, b, c] = [8 * LINE, 4 * LINE, 16 * LINE].map(|len| ranges.take(len).unwrap());
        assert!([a, b, c].iter().all(|(_, is_zero)| *is_zero));
        ranges.free(a.0, 8 * LINE);
        ranges.free(b.0, 4 * LINE);
        assert_eq!(ranges.take(12 * LINE), Some((a.0, false)), "two neighbours are one");
        ranges.free(a.0, 12 * LINE);
        assert_eq!(ranges.take(2 * LINE), Some((a.0, false)));
        ranges.free(c.0, 16 * LINE);
        assert_eq!(ranges.take(30 * LINE), Some((a.0 + 2 * LINE, false)), "the last one grows");
        assert_eq!(ranges.take(usize::MAX / 2), None);
        let beyond = ranges.take(RESERVE).unwrap();
        assert!(beyond.1 && !(a.0..a.0 + RESERVE).contains(&beyond.0));
    }
}

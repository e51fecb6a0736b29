//! Pinned memory for small copies. On the way to the device, the host waits for none of them. On
//! the way back, it waits for many of them at once.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaEvent, sys};

use super::stream::Stream;

/// Bytes per half.
const HALF: usize = 2 << 20;
/// The most bytes that can come back at once.
const BACK: usize = 256 << 10;
/// Alignment of copies.
const ALIGNMENT: usize = 16;

/// Two halves: one is filled while the device reads the other.
pub(crate) struct Staging {
    start: *mut u8,
    half: usize,
    used: usize,
    /// Events after the copies out of each half.
    read: [Option<CudaEvent>; 2],
}

// SAFETY: only this type knows the memory, and any thread may write to it.
unsafe impl Send for Staging {}

impl Staging {
    pub(crate) fn new(stream: &Stream) -> Result<Self, DriverError> {
        stream.0.context().bind_to_thread()?;
        // SAFETY: freed once, when this is dropped.
        let start = unsafe { result::malloc_host(2 * HALF + BACK, 0)? }.cast();
        Ok(Self { start, half: 0, used: 0, read: [None, None] })
    }

    /// Copies `bytes` to `to`. Returns the number of waits of the host.
    pub(crate) fn copy(
        &mut self,
        stream: &Stream,
        to: sys::CUdeviceptr,
        bytes: &[u8],
    ) -> Result<u64, DriverError> {
        if bytes.len() > HALF {
            stream.0.synchronize()?; // as in `bring_one`
            // SAFETY: `bytes` outlives the wait.
            unsafe { result::memcpy_htod_async(to, bytes, stream.0.cu_stream())? };
            stream.0.synchronize()?;
            return Ok(1);
        }
        let mut waits = 0;
        if self.used + bytes.len() > HALF {
            self.read[self.half] = Some(stream.0.record_event(None)?);
            (self.half, self.used) = (1 - self.half, 0);
            if let Some(read) = self.read[self.half].take()
                && !read.try_is_complete()?
            {
                read.synchronize()?;
                waits = 1;
            }
        }
        // SAFETY: the range lies in this half, from which no copy reads any more.
        let staged = unsafe {
            let at = self.start.add(self.half * HALF + self.used);
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            std::slice::from_raw_parts(at, bytes.len())
        };
        // SAFETY: the staged bytes do not change until the event after this copy.
        unsafe { result::memcpy_htod_async(to, staged, stream.0.cu_stream())? };
        self.used += bytes.len().next_multiple_of(ALIGNMENT);
        Ok(waits)
    }
}

impl Staging {
    /// Copies the contents at these addresses to the host. Returns the number of waits of the host.
    pub(crate) fn bring(
        &mut self,
        stream: &Stream,
        copies: &mut dyn Iterator<Item = (sys::CUdeviceptr, &mut [u8])>,
    ) -> Result<u64, DriverError> {
        let mut under_way: Vec<(usize, &mut [u8])> = Vec::new();
        let (mut used, mut waits) = (0, 0);
        for (from, into) in copies.filter(|(_, into)| !into.is_empty()) {
            if into.len() > BACK - used {
                waits += self.arrive(stream, &mut under_way)?;
                used = 0;
            }
            if into.len() > BACK {
                bring_one(stream, from, into)?;
                waits += 1;
                continue;
            }
            // SAFETY: the range lies after both halves, and is not reused before it arrives.
            unsafe {
                let at =
                    std::slice::from_raw_parts_mut(self.start.add(2 * HALF + used), into.len());
                result::memcpy_dtoh_async(at, from, stream.0.cu_stream())?;
            }
            under_way.push((used, into));
            used = (used + under_way.last().map_or(0, |(_, into)| into.len()))
                .next_multiple_of(ALIGNMENT);
        }
        Ok(waits + self.arrive(stream, &mut under_way)?)
    }

    /// Waits for the copies under way, and delivers them.
    fn arrive(
        &self,
        stream: &Stream,
        under_way: &mut Vec<(usize, &mut [u8])>,
    ) -> Result<u64, DriverError> {
        if under_way.is_empty() {
            return Ok(0);
        }
        stream.0.synchronize()?;
        for (at, into) in under_way.drain(..) {
            // SAFETY: the range was written by a copy that is done.
            unsafe { into.as_mut_ptr().copy_from(self.start.add(2 * HALF + at), into.len()) };
        }
        Ok(1)
    }
}

/// Copies the contents at an address to memory that is not pinned. Such a copy waits within the
/// driver for earlier work, while it holds a lock that other threads need. So it begins only when
/// that work is done.
pub(crate) fn bring_one(
    stream: &Stream,
    from: sys::CUdeviceptr,
    into: &mut [u8],
) -> Result<(), DriverError> {
    stream.0.synchronize()?;
    // SAFETY: the caller's range lies in an allocation, and `into` outlives the wait.
    unsafe { result::memcpy_dtoh_async(into, from, stream.0.cu_stream())? };
    stream.0.synchronize()
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: allocated by `malloc_host`; freeing waits for the copies.
        let freed = unsafe { result::free_host(self.start.cast()) };
        let _ = freed; // the device failed: its memory is freed when the process ends
    }
}

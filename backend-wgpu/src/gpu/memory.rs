//! The memory of a device: allocation, filling and reading back.

use std::sync::Arc;
use std::sync::mpsc::channel;

use chimera_core::device::{DeviceError, Result};
use wgpu::{BufferDescriptor, BufferUsages, ErrorFilter, MapMode, PollType, SubmissionIndex};

use super::fetched::Fetched;
use super::{ELEMENT, Gpu};
use crate::pool::{Memory, Pool};
use crate::tensor::{Slice, Tensor};

const USAGES: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Number of written bytes that triggers a submission, so at most twice as many are pending. The
/// device keeps copies of them in the host's memory until then.
const PIECE: usize = 64 << 20;

impl Gpu {
    /// Allocates an uninitialised tensor for a result.
    pub(crate) fn tensor(&self, op: &'static str, shape: &[usize]) -> Result<Tensor> {
        let bytes = shape.iter().fold(ELEMENT, |n, extent| n.saturating_mul(*extent as u64));
        let tensor = Tensor::whole(self.memory(op, bytes)?, shape);
        if self.poison {
            self.fill(op, &tensor, f32::NAN)?;
        }
        Ok(tensor)
    }

    /// Allocates memory with these contents.
    pub(crate) fn upload(&self, op: &'static str, bytes: &[u8]) -> Result<Memory> {
        let memory = self.memory(op, bytes.len() as u64)?;
        if memory.is_awaited() {
            self.submit(&mut self.stream());
        }
        for (n, piece) in bytes.chunks(PIECE).enumerate() {
            self.queue.write_buffer(memory.buffer(), (n * PIECE) as u64, piece);
            self.check_asked(op, piece.len() as u64)?;
            let mut stream = self.stream();
            if stream.stage(piece.len()) >= PIECE as u64 {
                self.submit(&mut stream);
            }
        }
        Ok(memory)
    }

    /// Uploads ids or positions as a kernel's operand.
    pub(crate) fn upload_ids(&self, op: &'static str, ids: &[u32]) -> Result<Tensor> {
        Ok(Tensor::whole(self.upload(op, bytemuck::cast_slice(ids))?, &[ids.len()]))
    }

    /// Fills a whole tensor with zeros.
    pub(crate) fn clear(&self, op: &'static str, tensor: &Tensor) -> Result<()> {
        let Slice { memory, start, len } = tensor.all();
        if len > 0 {
            let (start, size) = (start as u64 * ELEMENT, len as u64 * ELEMENT);
            let mut stream = self.stream();
            stream.encoder(&self.device).clear_buffer(memory.buffer(), start, Some(size));
        }
        self.check(op)
    }

    /// Concatenates the rows of `tensors`.
    pub(crate) fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let op = "join";
        let mut shape = tensors[0].shape().to_vec();
        shape[0] = tensors.iter().map(|x| x.n_rows()).sum();
        let joined = self.tensor(op, &shape)?;
        let mut at = 0;
        for x in tensors {
            self.copy(op, x, &joined.rows(at, x.n_rows()))?;
            at += x.n_rows();
        }
        Ok(joined)
    }

    /// Copies the elements of one tensor to another.
    pub(crate) fn copy(&self, op: &'static str, from: &Tensor, into: &Tensor) -> Result<()> {
        let (from, into) = (from.all(), into.all());
        assert_eq!(from.len, into.len, "{op}");
        let at = |slice: &Slice<'_>| slice.start as u64 * ELEMENT;
        let (source, target) = (from.memory.buffer(), into.memory.buffer());
        let mut stream = self.stream();
        let encoder = stream.encoder(&self.device);
        let size = from.len as u64 * ELEMENT;
        encoder.copy_buffer_to_buffer(source, at(&from), target, at(&into), size);
        drop(stream);
        self.check(op)
    }

    /// Begins to copy a tensor to the host.
    pub(crate) fn fetch(self: &Arc<Gpu>, tensor: &Tensor) -> Result<Fetched> {
        let op = "download";
        let Slice { memory, start, len } = tensor.all();
        let size = len as u64 * ELEMENT;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let staging = self.allocate(op, size.max(ELEMENT), usage)?;
        let submission = {
            let mut stream = self.stream();
            if len > 0 {
                let encoder = stream.encoder(&self.device);
                let start = start as u64 * ELEMENT;
                encoder.copy_buffer_to_buffer(memory.buffer(), start, &staging, 0, size);
            }
            self.submit(&mut stream)
        };
        Ok(self.fetched(staging, len, submission))
    }

    /// Returns the elements that `submission` copies to `staging`.
    pub(super) fn fetched(
        self: &Arc<Gpu>,
        staging: wgpu::Buffer,
        len: usize,
        submission: Option<SubmissionIndex>,
    ) -> Fetched {
        let (sender, mapped) = channel();
        staging.map_async(MapMode::Read, .., move |result| {
            let _ = sender.send(result); // nobody waits if polling failed
        });
        Fetched { gpu: Arc::clone(self), staging, len, submission, mapped, is_mapped: false }
    }

    fn memory(&self, op: &'static str, bytes: u64) -> Result<Memory> {
        self.check(op)?;
        let most = self.limits.max_buffer;
        let size = if bytes > most { bytes } else { Pool::size(bytes).min(most) };
        if let Some(memory) = self.pool.take(size) {
            return Ok(memory);
        }
        Ok(self.pool.own(self.allocate(op, size, USAGES)?))
    }

    pub(super) fn allocate(
        &self,
        op: &'static str,
        size: u64,
        usage: BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let out_of_memory = |what: String| DeviceError::OutOfMemory {
            device: self.name.clone(),
            what,
            asked_bytes: size,
        };
        if size > self.limits.max_buffer {
            let most = self.limits.max_buffer;
            return Err(out_of_memory(format!("a tensor of {op} (its largest has {most} bytes)")));
        }
        let attempt = || {
            let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
            let made = self.device.create_buffer(&BufferDescriptor {
                label: Some(op),
                size,
                usage,
                mapped_at_creation: false,
            });
            pollster::block_on(scope.pop()).is_none().then_some(made)
        };
        if let Some(made) = attempt() {
            return Ok(made);
        }
        // Free buffers of other sizes hold memory until the device is done with them.
        self.submit(&mut self.stream());
        self.pool.shrink();
        let _ = self.device.poll(PollType::wait_indefinitely()); // the second attempt shows it
        attempt().ok_or_else(|| out_of_memory(format!("a tensor of {op}")))
    }
}

pub(super) fn buffer(device: &wgpu::Device, size: u64) -> wgpu::Buffer {
    device.create_buffer(&BufferDescriptor {
        label: None,
        size,
        usage: USAGES,
        mapped_at_creation: false,
    })
}

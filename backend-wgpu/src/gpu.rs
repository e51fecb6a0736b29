//! One open device: memory, recording, submission, reading back.

use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use chimera_core::kernels::{DeviceError, Result};
use wgpu::{BufferDescriptor, BufferUsages, ErrorFilter, MapMode, PollType};

use crate::fetched::Fetched;
use crate::pool::{Memory, Pool};
use crate::shader::{Constants, Kernel, Pipelines};
use crate::stream::Stream;
use crate::tensor::{Slice, Tensor};
use crate::tuning::Tuning;

/// Bytes of an element.
const ELEMENT: u64 = 4;

/// A device, its queue, and all that is kept with them.
#[derive(Debug)]
pub(crate) struct Gpu {
    name: String,
    /// What it is, driver included.
    model: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: Limits,
    tuning: Tuning,
    /// Whether fresh results are filled with NaN.
    poison: bool,
    trouble: Arc<OnceLock<String>>,
    pipelines: Pipelines,
    pool: Arc<Pool>,
    stream: Mutex<Stream>,
    /// Bound in the place of operands that are not given.
    nothing: Memory,
}

/// What a kernel can be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The largest tensor, in bytes.
    pub(crate) max_buffer: u64,
    /// What an operand can hold at once, in bytes.
    pub(crate) max_binding: u64,
    /// Where what is bound may begin, in bytes.
    pub(crate) alignment: u64,
    /// Workgroups along one dimension.
    pub(crate) max_groups: u32,
}

/// One run of a kernel.
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) constants: Constants,
    /// The written ones first.
    pub(crate) operands: &'a [Slice<'a>],
    pub(crate) numbers: &'a [u32],
    /// Workgroups.
    pub(crate) groups: [u32; 3],
}

impl Gpu {
    pub(crate) fn new(
        [name, model]: [String; 2],
        (device, queue): (wgpu::Device, wgpu::Queue),
        limits: Limits,
        tuning: Tuning,
        poison: bool,
    ) -> Gpu {
        let trouble = Arc::new(OnceLock::new());
        let first = Arc::clone(&trouble);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let _ = first.set(error.to_string()); // the first cause stands
        }));
        let first = Arc::clone(&trouble);
        device.set_device_lost_callback(move |reason, message| {
            let _ = first.set(format!("the device was lost ({reason:?}): {message}"));
        });
        let pool = Arc::new(Pool::default());
        let nothing = pool.own(buffer(&device, Pool::size(ELEMENT)));
        Gpu {
            name,
            model,
            device,
            queue,
            limits,
            tuning,
            poison,
            trouble,
            pipelines: Pipelines::default(),
            pool,
            stream: Mutex::default(),
            nothing,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// A result to be: memory of its own, with whatever is in it.
    pub(crate) fn tensor(&self, op: &'static str, shape: &[usize]) -> Result<Tensor> {
        let bytes = shape.iter().fold(ELEMENT, |n, extent| n.saturating_mul(*extent as u64));
        let tensor = Tensor::whole(self.memory(op, bytes)?, shape);
        if self.poison {
            self.fill(op, &tensor, f32::NAN)?;
        }
        Ok(tensor)
    }

    /// Memory with these contents.
    pub(crate) fn upload(&self, op: &'static str, bytes: &[u8]) -> Result<Memory> {
        let memory = self.memory(op, bytes.len() as u64)?;
        if memory.is_awaited() {
            self.submit(&mut self.stream());
        }
        self.queue.write_buffer(memory.buffer(), 0, bytes);
        self.check(op)?;
        Ok(memory)
    }

    /// Ids or positions, as a kernel's operand.
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
        let (sender, mapped) = channel();
        staging.map_async(MapMode::Read, .., move |result| {
            let _ = sender.send(result); // nobody waits if polling failed
        });
        Ok(Fetched { gpu: Arc::clone(self), staging, len, submission, mapped, is_mapped: false })
    }

    /// Records a kernel.
    pub(crate) fn run(&self, op: &'static str, call: &Call<'_>) -> Result<()> {
        self.check(op)?;
        let Call { kernel, operands, numbers, groups, .. } = call;
        assert_eq!(operands.len(), kernel.n_written + kernel.n_read, "{op}");
        assert_eq!(numbers.len(), kernel.n_numbers, "{op}");
        if groups.contains(&0) {
            return Ok(());
        }
        let made = self.pipelines.get(&self.device, kernel, call.constants.clone());
        let windows: Vec<_> = operands.iter().map(|operand| self.window(operand)).collect();
        let entries: Vec<_> = (0..).zip(&windows).map(|(i, w)| w.entry(i)).collect();
        let bindings = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.entry),
            layout: &made.bindings,
            entries: &entries,
        });
        let starts = windows.iter().map(|window| window.start);
        let immediates: Vec<u32> = starts.chain(numbers.iter().copied()).collect();
        let mut stream = self.stream();
        let pass = stream.pass(&self.device);
        pass.set_pipeline(&made.pipeline);
        pass.set_bind_group(0, &bindings, &[]);
        pass.set_immediates(0, bytemuck::cast_slice(&immediates));
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        if stream.n_dispatches() >= self.tuning.batch {
            self.submit(&mut stream);
        }
        Ok(())
    }

    /// An operand that is not given.
    pub(crate) fn nothing(&self) -> Slice<'_> {
        Slice { memory: &self.nothing, start: 0, len: 1 }
    }

    /// Elements that an operand can hold at once, wherever it begins.
    pub(crate) fn max_elements(&self) -> usize {
        ((self.limits.max_binding - self.limits.alignment) / ELEMENT) as usize
    }

    /// Cuts rows into blocks that can be bound at once, each a multiple of `unit` rows long but for the
    /// last; `width` is that of the widest operand.
    pub(crate) fn blocks(
        &self,
        op: &'static str,
        rows: usize,
        width: usize,
        unit: usize,
    ) -> Result<impl Iterator<Item = Range<usize>> + use<>> {
        let unit = unit.max(1);
        let most = self.max_elements() / width.max(1) / unit * unit;
        if most == 0 && rows > 0 {
            let reason = format!(
                "{unit} row(s) of {width} elements are more than the {} bytes that it binds at once",
                self.limits.max_binding
            );
            return Err(self.failed(op, reason));
        }
        Ok((0..rows).step_by(most.max(1)).map(move |start| start..rows.min(start + most)))
    }

    /// Workgroups for `n` of them in a row, laid out over two dimensions.
    pub(crate) fn grid(&self, n: usize) -> [u32; 3] {
        let most = self.limits.max_groups as usize;
        let y = n.div_ceil(most);
        let x = if y == 0 { 0 } else { n.div_ceil(y) };
        [x as u32, y as u32, 1]
    }

    /// Workgroups along one dimension at most.
    pub(crate) fn max_groups(&self) -> u32 {
        self.limits.max_groups
    }

    pub(crate) fn failed(&self, op: &'static str, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.name.clone(), op, reason }
    }

    /// Lets the device tell what it has done; waits for `submission` if there is one.
    pub(crate) fn poll(&self, op: &'static str, wait: PollType) -> Result<()> {
        self.device.poll(wait).map_err(|e| self.failed(op, e.to_string()))?;
        self.check(op)
    }

    /// Fails if the device has reported anything.
    fn check(&self, op: &'static str) -> Result<()> {
        match self.trouble.get() {
            None => Ok(()),
            Some(reason) => Err(self.failed(op, reason.clone())),
        }
    }

    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, stream: &mut Stream) -> Option<wgpu::SubmissionIndex> {
        let commands = stream.finish()?;
        let submission = self.queue.submit([commands]);
        self.pool.submitted();
        Some(submission)
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

    fn allocate(&self, op: &'static str, size: u64, usage: BufferUsages) -> Result<wgpu::Buffer> {
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
        // Free buffers of other sizes hold memory, until the device is done with them.
        self.submit(&mut self.stream());
        self.pool.shrink();
        let _ = self.device.poll(PollType::wait_indefinitely()); // the second attempt tells
        attempt().ok_or_else(|| out_of_memory(format!("a tensor of {op}")))
    }

    fn window<'a>(&self, slice: &Slice<'a>) -> Window<'a> {
        let aligned = self.limits.alignment / ELEMENT;
        let before = slice.start as u64 % aligned;
        let size = (before + slice.len as u64).max(1) * ELEMENT;
        assert!(size <= self.limits.max_binding, "{} elements are bound at once", slice.len);
        Window {
            buffer: slice.memory.buffer(),
            offset: (slice.start as u64 - before) * ELEMENT,
            size,
            start: before as u32,
        }
    }
}

const USAGES: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

fn buffer(device: &wgpu::Device, size: u64) -> wgpu::Buffer {
    device.create_buffer(&BufferDescriptor {
        label: None,
        size,
        usage: USAGES,
        mapped_at_creation: false,
    })
}

/// What is bound of an operand.
struct Window<'a> {
    buffer: &'a wgpu::Buffer,
    offset: u64,
    size: u64,
    /// Where the operand begins in it, in elements.
    start: u32,
}

impl<'a> Window<'a> {
    fn entry(&self, binding: u32) -> wgpu::BindGroupEntry<'a> {
        wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: self.buffer,
                offset: self.offset,
                size: std::num::NonZeroU64::new(self.size),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::kernels::{DeviceError, Kernels};

    use crate::{Options, adapters};

    #[test]
    fn a_device_that_is_lost_ends_calls_with_an_error() {
        let adapter = adapters().into_iter().next().expect("an adapter");
        let k = adapter.open(Options::default()).expect("it opens");
        let mut sum = k.upload(&[2], &[1.0, 2.0]).unwrap();
        k.gpu.device.destroy();
        let x = sum.clone();
        let after = k.accumulate(&mut sum, &x).and_then(|()| k.download(&x));
        match after {
            Err(DeviceError::Failed { op, reason, .. }) => {
                assert!(!op.is_empty() && !reason.is_empty(), "{op}: {reason}");
            }
            other => panic!("{other:?}"),
        }
        assert!(k.zeros(&[3]).is_err());
    }
}

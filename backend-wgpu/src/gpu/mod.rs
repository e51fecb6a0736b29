//! One open device: recording and submission.

mod bound;
mod fetched;
mod memory;
mod time;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use chimera_core::device::{DeviceError, Result};
use wgpu::PollType;

pub(crate) use fetched::Fetched;
pub(crate) use time::{STAMPS, TIMESTAMPS};

use crate::pool::{Memory, Pool};
use crate::shader::{Constants, Kernel, Pipelines};
use crate::stream::Stream;
use crate::tensor::Slice;
use crate::tuning::Tuning;

/// Bytes per element.
const ELEMENT: u64 = 4;

/// A device, its queue, and the state that belongs to them.
#[derive(Debug)]
pub(crate) struct Gpu {
    name: String,
    /// The model, with its driver.
    model: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: Limits,
    tuning: Tuning,
    /// Whether fresh results are filled with NaN.
    poison: bool,
    trouble: Arc<OnceLock<Trouble>>,
    pipelines: Pipelines,
    pool: Arc<Pool>,
    stream: Mutex<Stream>,
    /// Bound instead of operands that are not given.
    nothing: Memory,
}

/// An error that a device reports after the call that caused it.
#[derive(Debug)]
enum Trouble {
    OutOfMemory,
    Failed(String),
}

impl Trouble {
    fn of(error: &wgpu::Error) -> Trouble {
        match error {
            wgpu::Error::OutOfMemory { .. } => Trouble::OutOfMemory,
            other => Trouble::Failed(other.to_string()),
        }
    }

    /// Classifies the loss of a device. wgpu gives up a device that runs out of memory in the
    /// middle of a call, and only its message says so.
    fn of_loss(reason: wgpu::DeviceLostReason, message: &str) -> Trouble {
        match message {
            "Out of memory" => Trouble::OutOfMemory,
            _ => Trouble::Failed(format!("the device was lost ({reason:?}): {message}")),
        }
    }
}

/// Limits of a kernel's operands and workgroups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The largest tensor, in bytes.
    pub(crate) max_buffer: u64,
    /// The most bytes that an operand can hold at once.
    pub(crate) max_binding: u64,
    /// The alignment of a binding's start, in bytes.
    pub(crate) alignment: u64,
    /// The most workgroups along one dimension.
    pub(crate) max_groups: u32,
}

/// One run of a kernel.
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) constants: Constants,
    /// The written ones first.
    pub(crate) operands: &'a [Slice<'a>],
    pub(crate) numbers: &'a [u32],
    /// The grid of workgroups.
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
            let _ = first.set(Trouble::of(&error)); // the first cause stands
        }));
        let first = Arc::clone(&trouble);
        device.set_device_lost_callback(move |reason, message| {
            let _ = first.set(Trouble::of_loss(reason, &message));
        });
        let pool = Arc::new(Pool::default());
        let nothing = pool.own(memory::buffer(&device, Pool::size(ELEMENT)));
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

    /// Returns true if the adapter is software on the processor.
    pub(crate) fn is_software(&self) -> bool {
        self.device.adapter_info().device_type == wgpu::DeviceType::Cpu
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the number of layers that are recorded but not submitted.
    #[cfg(test)]
    pub(crate) fn n_recorded(&self) -> usize {
        self.stream().n_dispatches()
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

    /// Returns a placeholder for an operand that is not given.
    pub(crate) fn nothing(&self) -> Slice<'_> {
        Slice { memory: &self.nothing, start: 0, len: 1 }
    }

    pub(crate) fn failed(&self, op: &'static str, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.name.clone(), op, reason }
    }

    /// Lets the device report finished work. Waits for `submission` if there is one.
    pub(crate) fn poll(&self, op: &'static str, wait: PollType) -> Result<()> {
        self.device.poll(wait).map_err(|e| self.failed(op, e.to_string()))?;
        self.check(op)
    }

    pub(crate) fn flush(&self) -> Result<()> {
        let mut stream = self.stream();
        if stream.is_recording() {
            self.submit(&mut stream);
        }
        drop(stream);
        self.check("flush")
    }

    /// Returns an error if the device has reported one.
    fn check(&self, op: &'static str) -> Result<()> {
        self.check_asked(op, 0)
    }

    /// Returns an error if the device has reported one, after a request for this much memory.
    fn check_asked(&self, op: &'static str, asked_bytes: u64) -> Result<()> {
        match self.trouble.get() {
            None => Ok(()),
            Some(Trouble::OutOfMemory) => {
                let (device, what) = (self.name.clone(), format!("{op} or work before it"));
                Err(DeviceError::OutOfMemory { device, what, asked_bytes })
            }
            Some(Trouble::Failed(reason)) => Err(self.failed(op, reason.clone())),
        }
    }

    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, stream: &mut Stream) -> Option<wgpu::SubmissionIndex> {
        let is_staged = stream.stage(0) > 0;
        let commands = stream.finish();
        if commands.is_none() && !is_staged {
            return None;
        }
        let submission = self.queue.submit(commands);
        self.pool.submitted();
        Some(submission)
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::device::{Device, DeviceError};
    use chimera_core::fault::Class;

    use super::Trouble;
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
    /// Drivers also run out of memory in writes and submissions, which return no error.
    #[test]
    fn memory_that_ends_between_calls_is_out_of_memory() {
        let adapter = adapters().into_iter().next().expect("an adapter");
        let k = adapter.open(Options::default()).expect("it opens");
        let full = wgpu::Error::OutOfMemory { source: "all is taken".into() };
        k.gpu.trouble.set(Trouble::of(&full)).expect("all was well");
        let error = k.upload(&[2], &[1.0, 2.0]).unwrap_err();
        assert_eq!(error.class(), Class::OutOfMemory);
        assert!(error.to_string().contains("no room for upload"), "{error}");
        let lost = |message| Trouble::of_loss(wgpu::DeviceLostReason::Unknown, message);
        assert!(matches!(lost("Out of memory"), Trouble::OutOfMemory));
        assert!(
            matches!(lost("the cable"), Trouble::Failed(reason) if reason.contains("the cable"))
        );
    }

    #[test]
    fn uploads_are_submitted_in_pieces() {
        let adapter = adapters().into_iter().next().expect("an adapter");
        let k = adapter.open(Options::default()).expect("it opens");
        let data: Vec<f32> = (0..40 << 20).map(|i| i as f32).collect();
        let [small, large] = [&data[..1 << 20], &data[..]];
        let submissions = || k.gpu.pool.n_submissions();
        let kept: Vec<_> = (0..16).map(|_| k.upload(&[small.len()], small).unwrap()).collect();
        assert_eq!(submissions(), 1, "16 times 4 MiB");
        let all = k.upload(&[large.len()], large).unwrap();
        assert_eq!(submissions(), 3, "64, 64 and 32 MiB");
        assert!(k.download(&all).unwrap() == large && k.download(&kept[15]).unwrap() == small);
    }
}

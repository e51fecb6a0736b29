//! Commands on their way to the device.

use wgpu::{CommandEncoder, CommandEncoderDescriptor, ComputePass, ComputePassDescriptor};

/// Commands that are recorded but not submitted.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pass: Option<ComputePass<'static>>,
    encoder: Option<CommandEncoder>,
    n_dispatches: usize,
    /// Bytes that were written since the last submission, which keeps copies of them.
    staged: u64,
}

impl Stream {
    /// Where kernels are recorded.
    pub(crate) fn pass(&mut self, device: &wgpu::Device) -> &mut ComputePass<'static> {
        self.n_dispatches += 1;
        let encoder = self.encoder.get_or_insert_with(|| encoder(device));
        self.pass.get_or_insert_with(|| {
            encoder.begin_compute_pass(&ComputePassDescriptor::default()).forget_lifetime()
        })
    }

    /// Where copies are recorded.
    pub(crate) fn encoder(&mut self, device: &wgpu::Device) -> &mut CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| encoder(device))
    }

    /// Kernels recorded since the last submission.
    pub(crate) fn n_dispatches(&self) -> usize {
        self.n_dispatches
    }

    /// Whether anything is recorded.
    pub(crate) fn is_recording(&self) -> bool {
        self.encoder.is_some()
    }

    /// Counts bytes that were written, and returns those since the last submission.
    pub(crate) fn stage(&mut self, bytes: usize) -> u64 {
        self.staged += bytes as u64;
        self.staged
    }

    /// Takes what is recorded.
    pub(crate) fn finish(&mut self) -> Option<wgpu::CommandBuffer> {
        self.pass = None;
        (self.n_dispatches, self.staged) = (0, 0);
        self.encoder.take().map(CommandEncoder::finish)
    }
}

fn encoder(device: &wgpu::Device) -> CommandEncoder {
    device.create_command_encoder(&CommandEncoderDescriptor::default())
}

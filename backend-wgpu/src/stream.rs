//! Commands on their way to the device.

use wgpu::{CommandEncoder, CommandEncoderDescriptor, ComputePass, ComputePassDescriptor};

/// Commands that are recorded but not submitted.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pass: Option<ComputePass<'static>>,
    encoder: Option<CommandEncoder>,
    n_dispatches: usize,
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

    /// Takes what is recorded.
    pub(crate) fn finish(&mut self) -> Option<wgpu::CommandBuffer> {
        self.pass = None;
        self.n_dispatches = 0;
        self.encoder.take().map(CommandEncoder::finish)
    }
}

fn encoder(device: &wgpu::Device) -> CommandEncoder {
    device.create_command_encoder(&CommandEncoderDescriptor::default())
}

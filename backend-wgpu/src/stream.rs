//! Commands that are recorded for the device.

use wgpu::{
    CommandEncoder, CommandEncoderDescriptor, ComputePass, ComputePassDescriptor, Features,
    QuerySet,
};

/// The feature for timestamps between kernels.
pub(crate) const IN_PASSES: Features = Features::TIMESTAMP_QUERY_INSIDE_PASSES;

/// Commands that are recorded but not submitted.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pass: Option<ComputePass<'static>>,
    encoder: Option<CommandEncoder>,
    n_dispatches: usize,
    /// Bytes written since the last submission, which keeps copies of them.
    staged: u64,
    /// The last timestamp, if nothing was recorded after it.
    last_mark: Option<(QuerySet, u32)>,
}

impl Stream {
    /// Returns the pass for recording kernels.
    pub(crate) fn pass(&mut self, device: &wgpu::Device) -> &mut ComputePass<'static> {
        self.n_dispatches += 1;
        self.last_mark = None;
        let encoder = self.encoder.get_or_insert_with(|| encoder(device));
        self.pass.get_or_insert_with(|| {
            encoder.begin_compute_pass(&ComputePassDescriptor::default()).forget_lifetime()
        })
    }

    /// Returns the encoder for recording copies.
    pub(crate) fn encoder(&mut self, device: &wgpu::Device) -> &mut CommandEncoder {
        (self.pass, self.last_mark) = (None, None);
        self.encoder.get_or_insert_with(|| encoder(device))
    }

    /// Records a timestamp, between kernels if the device can write it there.
    pub(crate) fn mark(&mut self, device: &wgpu::Device, set: &QuerySet, index: u32) {
        match &mut self.pass {
            Some(pass) if device.features().contains(IN_PASSES) => pass.write_timestamp(set, index),
            _ => self.encoder(device).write_timestamp(set, index),
        }
        self.last_mark = Some((set.clone(), index));
    }

    /// Returns true if nothing was recorded after this timestamp, and it was not submitted.
    pub(crate) fn is_at(&self, set: &QuerySet, index: u32) -> bool {
        self.last_mark.as_ref().is_some_and(|(at, i)| (at, *i) == (set, index))
    }

    /// Returns the number of layers recorded since the last submission.
    pub(crate) fn n_dispatches(&self) -> usize {
        self.n_dispatches
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.encoder.is_some()
    }

    /// Counts written bytes, and returns those since the last submission.
    pub(crate) fn stage(&mut self, bytes: usize) -> u64 {
        self.staged += bytes as u64;
        self.staged
    }

    pub(crate) fn finish(&mut self) -> Option<wgpu::CommandBuffer> {
        (self.pass, self.last_mark) = (None, None);
        (self.n_dispatches, self.staged) = (0, 0);
        self.encoder.take().map(CommandEncoder::finish)
    }
}

fn encoder(device: &wgpu::Device) -> CommandEncoder {
    device.create_command_encoder(&CommandEncoderDescriptor::default())
}

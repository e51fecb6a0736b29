//! A copy to the host that is under way.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use chimera_core::device::{Fetch, Result};
use wgpu::{BufferAsyncError, PollType, SubmissionIndex};

use super::Gpu;

const OP: &str = "download";

/// Elements that are copied into a staging buffer of the host.
pub(crate) struct Fetched {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) staging: wgpu::Buffer,
    /// Number of elements.
    pub(crate) len: usize,
    /// The submission that copies them; `None` for the whole queue.
    pub(crate) submission: Option<SubmissionIndex>,
    /// Receives a message when the buffer can be read.
    pub(crate) mapped: Receiver<std::result::Result<(), BufferAsyncError>>,
    pub(crate) is_mapped: bool,
}

impl Fetched {
    /// Waits for the elements, and appends them.
    pub(crate) fn read(mut self, into: &mut Vec<f32>) -> Result<()> {
        let view = self.view()?;
        let start = into.len();
        into.resize(start + self.len, 0.0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut into[start..]);
        bytes.copy_from_slice(&view[..4 * self.len]);
        Ok(())
    }

    /// Waits for the bytes.
    pub(crate) fn view(&mut self) -> Result<wgpu::BufferView> {
        let is_there = self.is_there()?;
        let failed = |reason: String| self.gpu.failed(OP, reason);
        if !is_there {
            let submission_index = self.submission.take();
            self.gpu.poll(OP, PollType::Wait { submission_index, timeout: None })?;
            let mapped = self.mapped.recv().map_err(|e| failed(e.to_string()))?;
            mapped.map_err(|e| failed(e.to_string()))?;
        }
        self.staging.get_mapped_range(..).map_err(|e| failed(e.to_string()))
    }

    fn is_there(&mut self) -> Result<bool> {
        if !self.is_mapped {
            self.gpu.poll(OP, PollType::Poll)?;
            self.is_mapped = match self.mapped.try_recv() {
                Ok(mapped) => {
                    mapped.map(|()| true).map_err(|e| self.gpu.failed(OP, e.to_string()))?
                }
                Err(TryRecvError::Empty) => false,
                Err(gone @ TryRecvError::Disconnected) => {
                    return Err(self.gpu.failed(OP, gone.to_string()));
                }
            };
        }
        Ok(self.is_mapped)
    }
}

impl Fetch for Fetched {
    fn is_there(&mut self) -> Result<bool> {
        Fetched::is_there(self)
    }

    fn finish(self: Box<Self>, into: &mut Vec<f32>) -> Result<()> {
        self.read(into)
    }
}

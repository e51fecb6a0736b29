//! The time of a device's work, told by timestamps that it writes on its way.

use std::sync::Arc;

use chimera_core::kernels::{Clock, Result};

use crate::gpu::Gpu;

/// A clock of one device.
pub(crate) struct QueueClock {
    gpu: Arc<Gpu>,
    sets: Vec<wgpu::QuerySet>,
    n_marks: usize,
}

/// Marks of a set.
pub(crate) const MARKS: u32 = 256;

impl QueueClock {
    pub(crate) fn new(gpu: Arc<Gpu>) -> QueueClock {
        QueueClock { gpu, sets: Vec::new(), n_marks: 0 }
    }
}

impl Clock for QueueClock {
    fn mark(&mut self) {
        let (set, index) = (self.n_marks / MARKS as usize, self.n_marks as u32 % MARKS);
        if set == self.sets.len() {
            self.sets.push(self.gpu.marks());
        }
        self.gpu.mark(&self.sets[set], index);
        self.n_marks += 1;
    }

    fn ages(&mut self) -> Result<Vec<f64>> {
        self.mark();
        let n = std::mem::take(&mut self.n_marks);
        let seconds = self.gpu.marked(&self.sets, n)?;
        let (now, marks) = seconds.split_last().unwrap_or((&0.0, &[]));
        Ok(marks.iter().map(|mark| now - mark).collect())
    }
}

//! The time of a device's work, from timestamps that the device writes.

use std::sync::Arc;

use chimera_core::device::{Clock, Result};

use crate::gpu::{Gpu, STAMPS};

/// A clock of one device. Marks with no work between them share a timestamp.
pub(crate) struct QueueClock {
    gpu: Arc<Gpu>,
    sets: Vec<wgpu::QuerySet>,
    n_stamps: usize,
    marks: Vec<usize>,
}

impl QueueClock {
    pub(crate) fn new(gpu: Arc<Gpu>) -> QueueClock {
        QueueClock { gpu, sets: Vec::new(), n_stamps: 0, marks: Vec::new() }
    }

    fn is_at_last(&self) -> bool {
        let Some(last) = self.n_stamps.checked_sub(1) else { return false };
        let (set, index) = place(last);
        self.gpu.is_at(&self.sets[set], index)
    }
}

/// Returns the query set of a timestamp, and its index there.
fn place(stamp: usize) -> (usize, u32) {
    (stamp / STAMPS as usize, stamp as u32 % STAMPS)
}

impl Clock for QueueClock {
    fn mark(&mut self) {
        if !self.is_at_last() {
            let (set, index) = place(self.n_stamps);
            if set == self.sets.len() {
                self.sets.push(self.gpu.stamps());
            }
            self.gpu.mark(&self.sets[set], index);
            self.n_stamps += 1;
        }
        self.marks.push(self.n_stamps - 1);
    }

    fn ages(&mut self) -> Result<Vec<f64>> {
        self.mark();
        let (n, marks) = (std::mem::take(&mut self.n_stamps), std::mem::take(&mut self.marks));
        let seconds = self.gpu.marked(&self.sets, n)?;
        let (now, marks) = marks.split_last().map_or((0.0, &[][..]), |(now, m)| (seconds[*now], m));
        Ok(marks.iter().map(|mark| now - seconds[*mark]).collect())
    }
}

//! Timestamps in the order of the device's work.

use std::sync::Arc;

use chimera_core::device::Result;
use wgpu::{BufferUsages, Features, QuerySet, QuerySetDescriptor, QueryType};

use super::Gpu;

const OP: &str = "clock";
/// Timestamps per query set.
pub(crate) const STAMPS: u32 = 256;
/// Bytes per timestamp.
const TICKS: u64 = 8;
/// Features that timestamps need.
pub(crate) const TIMESTAMPS: Features =
    Features::TIMESTAMP_QUERY.union(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

impl Gpu {
    pub(crate) fn has_clock(&self) -> bool {
        self.device.features().contains(TIMESTAMPS)
    }

    /// Creates a query set for [`STAMPS`] timestamps.
    pub(crate) fn stamps(&self) -> QuerySet {
        self.device.create_query_set(&QuerySetDescriptor {
            label: None,
            ty: QueryType::Timestamp,
            count: STAMPS,
        })
    }

    /// Lets the device write its time after all recorded work.
    pub(crate) fn mark(&self, set: &QuerySet, index: u32) {
        self.stream().mark(&self.device, set, index);
    }

    /// Returns true if nothing was recorded after this timestamp, and it was not submitted.
    pub(crate) fn is_at(&self, set: &QuerySet, index: u32) -> bool {
        self.stream().is_at(set, index)
    }

    /// Waits for the first `n` timestamps, and returns them in seconds from an arbitrary start.
    pub(crate) fn marked(self: &Arc<Gpu>, sets: &[QuerySet], n: usize) -> Result<Vec<f64>> {
        let size = sets.len() as u64 * u64::from(STAMPS) * TICKS;
        let resolved = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let resolved = self.allocate(OP, size, resolved)?;
        let staging = self.allocate(OP, size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        let submission = {
            let mut stream = self.stream();
            let encoder = stream.encoder(&self.device);
            let (mut left, mut start) = (n as u32, 0);
            for set in sets {
                let here = left.min(STAMPS);
                if here > 0 {
                    encoder.resolve_query_set(set, 0..here, &resolved, start);
                }
                (left, start) = (left - here, start + u64::from(STAMPS) * TICKS);
            }
            encoder.copy_buffer_to_buffer(&resolved, 0, &staging, 0, size);
            self.submit(&mut stream)
        };
        let view = self.fetched(staging, n, submission).view()?;
        let ticks: &[u64] = bytemuck::cast_slice(&view);
        let period_s = f64::from(self.queue.get_timestamp_period()) * 1e-9;
        let first = ticks.first().copied().unwrap_or(0);
        Ok(ticks[..n].iter().map(|tick| tick.wrapping_sub(first) as f64 * period_s).collect())
    }
}

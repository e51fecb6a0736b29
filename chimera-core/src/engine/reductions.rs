//! The reductions that a rank has under way.

use std::sync::Arc;

use super::layout::BucketLayout;
use super::reduction::{ReduceError, Reduction};
use super::shards::of_bucket;
use super::timing::Moment;
use crate::comm::Comm;
use crate::device::Device;
use crate::ids::BucketId;

/// Reductions in the order in which they were started.
pub(super) struct Reductions<T> {
    /// By bucket of an update: how its gradients lie in the buffer that is reduced.
    buffers: Vec<Arc<BucketLayout>>,
    /// By bucket of an update: how gradients lie with factors of linear layers behind them; none where the optimizer takes none.
    with_factors: Vec<Arc<BucketLayout>>,
    /// Whether gradients go between replicas in bf16.
    is_bf16: bool,
    /// With the time of each start.
    under_way: Vec<(BucketId, Reduction<T>, Moment)>,
}

impl<T: Clone + Send> Reductions<T> {
    pub(super) fn new(
        buffers: Vec<Arc<BucketLayout>>,
        with_factors: Vec<Arc<BucketLayout>>,
        is_bf16: bool,
    ) -> Self {
        Reductions { buffers, with_factors, is_bf16, under_way: Vec::new() }
    }

    /// How a bucket's gradients lie in the buffer that is reduced, with factors or without, and whether they are sent in
    /// bf16.
    pub(super) fn buffer(
        &self,
        bucket: BucketId,
        takes_factors: bool,
    ) -> (Arc<BucketLayout>, bool) {
        let buffers = if takes_factors { &self.with_factors } else { &self.buffers };
        (Arc::clone(of_bucket(buffers, bucket)), self.is_bf16)
    }

    /// Takes on a reduction that was started.
    pub(super) fn push(&mut self, bucket: BucketId, sum: Reduction<T>, start: Moment) {
        self.under_way.push((bucket, sum, start));
    }

    /// The reduction of a bucket, to be waited for, and when it started. A program that awaits what it has not
    /// started is a bug.
    pub(super) fn take(&mut self, bucket: BucketId) -> (Reduction<T>, Moment) {
        let Some(at) = self.under_way.iter().position(|(b, ..)| *b == bucket) else {
            panic!("{bucket} is awaited before its reduction");
        };
        let (_, sum, start) = self.under_way.remove(at);
        (sum, start)
    }

    /// Forgets those of a program that is not finished.
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
    }

    /// Whether one of them still needs messages.
    pub(super) fn is_summing(&self) -> bool {
        self.under_way.iter().any(|(_, sum, _)| !sum.is_done())
    }

    /// Gets each as far as it can without waiting; fails with the bucket of the first that cannot go on.
    pub(super) fn poll<D, C>(
        &mut self,
        device: &D,
        comm: &mut C,
    ) -> Result<(), (BucketId, ReduceError)>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let mut all = self.under_way.iter_mut();
        all.try_for_each(|(bucket, sum, _)| sum.poll(device, comm).map_err(|e| (*bucket, e)))
    }
}

//! The reductions in progress on a rank.

use std::sync::Arc;

use chimera_schedule::ids::BucketId;

use crate::comm::Comm;
use crate::device::Device;
use crate::engine::reduce::reduction::{ReduceError, Reduction};
use crate::engine::reduce::shards::{BucketPart, of_bucket};
use crate::engine::report::timing::Moment;

/// The parts of buckets, and the reductions in the order in which they were started.
pub(crate) struct Reductions<T> {
    /// Parts of each bucket of an update.
    parts: Vec<Vec<Arc<BucketPart>>>,
    /// By bucket of an update: its parts with factors of linear layers; empty without factors.
    with_factors: Vec<Vec<Arc<BucketPart>>>,
    /// Whether gradients are sent between replicas in bf16.
    is_bf16: bool,
    under_way: Vec<UnderWay<T>>,
}

pub(crate) struct UnderWay<T> {
    pub(crate) bucket: BucketId,
    /// The tensors that it sums.
    pub(crate) part: Arc<BucketPart>,
    pub(crate) sum: Reduction<T>,
    pub(crate) start: Moment,
}

impl<T: Clone + Send> Reductions<T> {
    pub(crate) fn new(
        parts: Vec<Vec<Arc<BucketPart>>>,
        with_factors: Vec<Vec<Arc<BucketPart>>>,
        is_bf16: bool,
    ) -> Self {
        Reductions { parts, with_factors, is_bf16, under_way: Vec::new() }
    }

    pub(crate) fn parts(&self, bucket: BucketId, takes_factors: bool) -> &[Arc<BucketPart>] {
        let parts = if takes_factors { &self.with_factors } else { &self.parts };
        of_bucket::<Vec<_>>(parts, bucket)
    }

    pub(crate) fn is_bf16(&self) -> bool {
        self.is_bf16
    }

    pub(crate) fn push(&mut self, reduction: UnderWay<T>) {
        self.under_way.push(reduction);
    }

    /// Takes the first reduction of a bucket that is still in progress, if any.
    pub(crate) fn take(&mut self, bucket: BucketId) -> Option<UnderWay<T>> {
        let at = self.under_way.iter().position(|under_way| under_way.bucket == bucket)?;
        Some(self.under_way.remove(at))
    }

    /// Takes a reduction that still needs messages, if any.
    pub(crate) fn take_unfinished(&mut self) -> Option<UnderWay<T>> {
        let at = self.under_way.iter().position(|under_way| !under_way.sum.is_done())?;
        Some(self.under_way.remove(at))
    }

    pub(crate) fn clear(&mut self) {
        self.under_way.clear();
    }

    /// Returns true if some reduction still needs messages.
    pub(crate) fn is_summing(&self) -> bool {
        self.under_way.iter().any(|under_way| !under_way.sum.is_done())
    }

    /// Lets each reduction proceed as far as possible without waiting. Fails with the bucket of the
    /// first that cannot go on.
    pub(crate) fn poll<D, C>(
        &mut self,
        device: &D,
        comm: &mut C,
    ) -> Result<(), (BucketId, ReduceError)>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let mut all = self.under_way.iter_mut();
        all.try_for_each(|UnderWay { bucket, sum, .. }| {
            sum.poll(device, comm).map_err(|e| (*bucket, e))
        })
    }
}

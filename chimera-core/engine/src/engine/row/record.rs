//! A rank's record in the step sync.

use chimera_schedule::ids::{BucketId, StageId};

use crate::comm::{Comm, Endpoint};
use crate::device::Device;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::sync::agreement::{Record, Totals};
use crate::fault::Fault;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    pub(crate) fn own_record(&mut self) -> Result<Record, Fault> {
        let start = self.now();
        let window = self.job.program.window();
        let totals = |squared_norm: &f64| Totals { loss: 0.0, squared_norm: *squared_norm };
        let mut record = Record {
            steps: self.steps.squared_norms.iter().map(totals).collect(),
            copy_s: self.timing.since.copy_s,
            bytes: self.bytes() as f64,
            stop: self.is_stopping(),
            culprit: self.steps.culprit.clone(),
            ..Record::default()
        };
        // The owner has the sum, whether the optimizer is sharded or not.
        let owns = |bucket: BucketId, tensor: usize| {
            self.stages.owners(bucket)[tensor] == self.comm.rank()
        };
        let buckets = self.stages.buckets().filter(|_| !self.updates_alone());
        let places: Vec<_> = buckets
            .flat_map(|bucket| self.summed(bucket, move |tensor| owns(bucket, tensor)))
            .collect();
        let norms = self.norms(&places)?;
        // The only time in a step that this rank waits for the device.
        let losses = self.steps.losses.iter().map(|(_, loss)| loss);
        let numbers = self.numbers(losses.chain([&norms]))?;
        // An asynchronous device has finished the step's compute by now, and can report its times.
        self.timing.computed(start);
        let settled = self.timing.settle();
        self.on_device("clock", settled)?;
        record.busy_s = self.timing.take_busy_s();
        let waits = std::mem::take(&mut self.timing.waits_so_far);
        record.waits = waits.with(self.comm.take_traffic());
        record.span_s = self.timing.since.start.elapsed().as_secs_f64();
        let (losses, squares) = numbers.split_at(self.steps.losses.len());
        for ((op, _), &loss) in self.steps.losses.iter().zip(losses) {
            if !loss.is_finite() && record.culprit.is_empty() {
                record.culprit = format!("the loss of {op}");
            }
            let step = window.step_of(op.span) as usize;
            record.steps[step].loss += loss / f64::from(window.updates_per_step());
        }
        for (place, square) in places.iter().zip(squares) {
            let Record { steps, culprit, .. } = &mut record;
            self.add_norm(*place, *square, &mut steps[0].squared_norm, culprit);
        }
        Ok(record)
    }

    /// Returns true if this rank is the first replica of a bucket.
    pub(crate) fn is_lead(&self, bucket: BucketId) -> bool {
        let lead = self.job.program.buckets()[bucket.index()].members.first();
        self.group == 0 && lead.map(|w| self.rank_of(*w, 0)) == Some(self.comm.rank())
    }

    /// Adds the squared norms of a bucket's gradients to `sum`. Sets `culprit` to the first that is
    /// not finite, unless it is already set.
    pub(crate) fn add_norms(
        &self,
        bucket: BucketId,
        sum: &mut f64,
        culprit: &mut String,
    ) -> Result<(), Fault> {
        let places: Vec<_> = self.summed(bucket, |_| true).collect();
        let squares = self.numbers([&self.norms(&places)?].into_iter())?;
        for (place, square) in places.iter().zip(squares) {
            self.add_norm(*place, square, sum, culprit);
        }
        Ok(())
    }

    /// The stage and index of each gradient of a bucket, if its number is `counted`; once for
    /// tensors that stages share.
    fn summed(
        &self,
        bucket: BucketId,
        counted: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = (StageId, usize)> {
        let tensors = self.stages.places(bucket).iter().enumerate();
        let counted = tensors.filter(move |(tensor, _)| counted(*tensor));
        counted.filter_map(|(_, places)| places.first().copied())
    }

    /// The squared norms of gradients, as a tensor on the device.
    fn norms(&self, places: &[(StageId, usize)]) -> Result<S::Tensor, Fault> {
        let grads: Vec<_> =
            places.iter().map(|(s, index)| &self.stages.held(*s).grads[*index]).collect();
        self.on_device("gradient norms", self.device.squared_norms(&grads))
    }

    fn add_norm(
        &self,
        (stage, index): (StageId, usize),
        square: f64,
        sum: &mut f64,
        culprit: &mut String,
    ) {
        if !square.is_finite() && culprit.is_empty() {
            let name = &self.stages.held(stage).stage.params()[index].name;
            *culprit = format!("the gradient of {name} ({stage})");
        }
        *sum += square;
    }

    /// Downloads all elements, one tensor after the other.
    pub(crate) fn numbers<'t>(
        &self,
        tensors: impl Iterator<Item = &'t S::Tensor>,
    ) -> Result<Vec<f64>, Fault> {
        let tensors: Vec<&S::Tensor> = tensors.collect();
        let all = self.on_device("download", self.device.download_all(&tensors))?;
        let values = tensors
            .iter()
            .zip(all)
            .map(|(tensor, elements)| elements.to_f64(self.device.shape(tensor).iter().product()));
        Ok(values.flatten().collect())
    }

    /// Bytes of all versions of weights, gradients and moments, and the peak of activations.
    fn bytes(&self) -> u64 {
        self.state_bytes().iter().map(|(_, bytes)| bytes).sum::<u64>() + self.steps.activations.peak
    }

    /// Bytes that a rank holds permanently.
    pub(crate) fn state_bytes(&self) -> [(&'static str, u64); 3] {
        let (_, me) = self.job.program.placement().group_and_worker(self.comm.rank());
        let n_versions = u64::from(self.job.program.weight_versions()[me.index()]);
        let [weights, gradients, moments] = self.stages.bytes(&self.device, n_versions);
        // If windows may be trained again, the state that updates overwrite is kept too.
        let times = if self.validates_window() { 2 } else { 1 };
        let of = |(what, bytes): (&'static str, u64)| (what, times * bytes);
        // Gradients that are allocated by need count with the activations.
        let by_need = self.job.training.shard_gradients;
        [of(weights), if by_need { ("gradients", 0) } else { gradients }, of(moments)]
    }
}

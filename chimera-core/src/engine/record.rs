//! What one rank has to say in the agreement.

use std::sync::atomic::Ordering;

use super::agreement::Record;
use super::world::World;
use crate::comm::Comm;
use crate::fault::Fault;
use crate::kernels::Kernels;
use crate::stage::Stage;

impl<S, K, C> World<'_, S, K, C>
where
    S: Stage<Tensor = K::Tensor>,
    K: Kernels,
    C: Comm<K::Tensor>,
{
    /// This rank's part of the agreement.
    pub(super) fn own_record(&self) -> Result<Record, Fault> {
        let mut record = Record {
            busy_s: self.since_agreed.busy_s,
            span_s: self.since_agreed.start.elapsed().as_secs_f64(),
            bytes: self.bytes() as f64,
            stop: self.job.stop.load(Ordering::Relaxed),
            ..Record::default()
        };
        for (op, loss) in &self.losses {
            let loss = self.scalar(loss)?;
            if !loss.is_finite() && record.culprit.is_empty() {
                record.culprit = format!("the loss of {op}");
            }
            record.loss += loss;
        }
        for (bucket, tensors) in self.layout.iter().enumerate() {
            let lead = self.job.program.buckets()[bucket].members.first();
            if self.group != 0 || lead.map(|w| self.rank_of(*w, 0)) != Some(self.comm.rank()) {
                continue; // another replica counts these
            }
            for &(stage, index) in tensors.iter().filter_map(|places| places.first()) {
                let held = self.held(stage);
                let norm = self.kernels.squared_norm(&held.grads[index]);
                let norm = self.scalar(&self.on_device("gradient norm", norm)?)?;
                if !norm.is_finite() && record.culprit.is_empty() {
                    let name = &held.stage.params()[index].name;
                    record.culprit = format!("the gradient of {name} ({stage})");
                }
                record.squared_norm += norm;
            }
        }
        Ok(record)
    }

    fn scalar(&self, tensor: &S::Tensor) -> Result<f64, Fault> {
        let values = self.on_device("download", self.kernels.download(tensor))?;
        Ok(values.iter().map(|v| f64::from(*v)).sum())
    }

    /// Bytes of weights, gradients and moments, and of what is kept for backwards at its peak.
    fn bytes(&self) -> u64 {
        let elements: usize = (self.held.iter().flatten())
            .flat_map(|held| held.stage.params())
            .map(|param| param.n_elements())
            .sum();
        elements as u64 * 4 * 4 + self.residuals.peak
    }
}

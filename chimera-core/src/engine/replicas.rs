//! Whether the replicas of every tensor still are equal.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Worker;
use super::handshake::Fields;
use crate::analyze::Need;
use crate::comm::{Comm, Endpoint, all_gather};
use crate::device::Device;
use crate::fault::{Class, Fault};
use crate::ids::Rank;
use crate::stage::Stage;

impl<S, D, C> Worker<'_, S, D, C>
where
    S: Stage<Tensor = D::Tensor>,
    D: Device,
    C: Comm<D::Tensor>,
{
    /// Compares the weights of all replicas by their hashes; all ranks call it at the same time. Moments
    /// need no look: where they differ, so do weights after the next update.
    ///
    /// # Errors
    /// [`Class::Mismatch`] names the first tensor that differs, and two ranks that hold it.
    pub fn check_replicas(&mut self) -> Result<(), Fault> {
        let (began, job, mut mine) = (Instant::now(), self.world.job, Fields::new());
        if job.width == 1 && job.program.buckets().iter().all(|b| b.members.len() == 1) {
            return Ok(()); // there are none
        }
        for held in self.world.held.iter().flatten() {
            for (param, weight) in held.stage.params().iter().zip(held.weights.iter()) {
                let values = self.download(weight)?;
                let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
                mine.push((param.name.clone(), blake3::hash(&bytes).to_string()));
            }
        }
        let world = &mut self.world;
        let rank = world.comm.rank();
        let mine = serde_json::to_vec(&mine);
        let mine = mine.map_err(|e| Fault::new(Class::Internal, rank, e.to_string()))?;
        let deadline = world.deadline();
        let all = all_gather(&mut world.comm, &mine, deadline);
        let all = world.on_wait("comparison of replicas", Need::Other, all)?;
        world.since_agreed.leave_out(began);
        let mut known: BTreeMap<String, (Rank, String)> = BTreeMap::new();
        for (from, hashes) in (0..).map(Rank).zip(&all) {
            let hashes: Fields = serde_json::from_slice(hashes).map_err(|_| {
                let message = format!("{from} sent hashes that cannot be read");
                Fault { peer: Some(from), ..Fault::new(Class::Mismatch, rank, message) }
            })?;
            for (name, hash) in hashes {
                let (first, known) =
                    known.entry(name.clone()).or_insert_with(|| (from, hash.clone()));
                if *known != hash {
                    let message = format!(
                        "{name} differs between {first} and {from}, which train the same: a device or a \
                         machine of one of them computes wrongly. Go on from a checkpoint before this step"
                    );
                    let fault = Fault::new(Class::Mismatch, from, message);
                    return Err(Fault { peer: Some(*first), step: Some(world.step), ..fault });
                }
            }
        }
        Ok(())
    }
}

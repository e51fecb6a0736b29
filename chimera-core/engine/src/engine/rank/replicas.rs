//! Checks that the replicas of every tensor are still equal.

use std::collections::BTreeMap;
use std::time::Instant;

use chimera_schedule::analyze::Need;
use chimera_schedule::ids::Rank;

use crate::comm::{Comm, Endpoint, all_gather};
use crate::device::{Device, Elements};
use crate::engine::Worker;
use crate::engine::fields::Fields;
use crate::engine::state::rank_state::StageOn;
use crate::fault::{Class, Fault};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'_, S, D, C> {
    /// Compares the weights of all replicas by their hashes. All ranks must call it at the same
    /// time. Moments are not compared: if they differ, so do weights after the next update.
    ///
    /// # Errors
    /// [`Class::Mismatch`] names the first tensor that differs, and two ranks that hold it.
    pub fn check_replicas(&mut self) -> Result<(), Fault> {
        let (began, job, mut mine) = (Instant::now(), self.state.job, Fields::new());
        if job.width == 1 && job.program.buckets().iter().all(|b| b.members.len() == 1) {
            return Ok(()); // no replicas
        }
        for held in self.state.stages.iter() {
            let tensors = held.stage.params().iter().zip(held.weights.iter());
            let is_here = |tensor| self.state.device.shape(tensor) != [0];
            for (param, weight) in tensors.filter(|(_, weight)| is_here(weight)) {
                mine.push((param.name.clone(), self.hash(weight)?));
            }
        }
        let state = &mut self.state;
        let rank = state.comm.rank();
        let mine = serde_json::to_vec(&mine);
        let mine = mine.map_err(|e| Fault::new(Class::Internal, rank, e.to_string()))?;
        let deadline = state.deadline();
        let all = all_gather(&mut state.comm, &mine, deadline);
        let all = state.on_wait("comparison of replicas", Need::Other, all)?;
        state.timing.since.leave_out(began);
        let mut known: BTreeMap<String, (Rank, String)> = BTreeMap::new();
        for (from, hashes) in (0..).map(Rank).zip(&all) {
            let hashes: Fields = serde_json::from_slice(hashes).map_err(|_| {
                let message = format!("{from} sent unreadable hashes");
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
                    return Err(Fault {
                        peer: Some(*first),
                        step: Some(state.steps.first),
                        ..fault
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the BLAKE3 hash of a tensor, after downloading it.
    pub(crate) fn hash(&self, tensor: &D::Tensor) -> Result<String, Fault> {
        let words = self.copy(tensor, Elements::default())?.words;
        let bytes: Vec<u8> = words.into_iter().flat_map(f32::to_le_bytes).collect();
        Ok(blake3::hash(&bytes).to_string())
    }
}

//! What an end does after a death, where deaths of ranks are survived.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use chimera_core::comm::CommError;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use mpi::ffi;

use super::MpiEndpoint;
use crate::error::Failure;

/// For who has died to become known here, when another rank has said that someone has.
const TO_LEARN: Duration = Duration::from_millis(500);
/// For MPI to let go of what is under way on a communicator that is revoked.
const TO_LET_GO: Duration = Duration::from_millis(500);

impl MpiEndpoint {
    /// Whether deaths of ranks are survived.
    pub(crate) fn survives(&self) -> bool {
        self.survivable.is_some()
    }

    /// Makes all calls fail that any rank makes here.
    pub(crate) fn revoke(&self) {
        if let Some(comm) = &self.survivable {
            comm.revoke();
        }
    }

    /// Why a call failed: a death, where MPI says so.
    pub(crate) fn cause(&self, reason: Failure) -> CommError {
        let Some(comm) = &self.survivable else { return CommError::Failed(reason) };
        let deadline = Instant::now() + TO_LEARN;
        loop {
            if let Some(from) = comm.first_dead().map(|rank| Rank(rank as u32)) {
                return CommError::Lost { from, what: "all that it had to".into() };
            }
            if !comm.is_revoked() {
                return CommError::Failed(reason);
            }
            if Instant::now() > deadline {
                let message = "another rank has met the death of one that is not known here";
                let fault = Fault::new(Class::PeerLost, self.me, message);
                return CommError::Aborted(Fault { peer: Some(self.me), ..fault });
            }
            comm.look();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits, but not for long, until MPI has let go of what is under way on a communicator that is revoked. What it has
    /// not let go of stays in memory for ever, since it may still write to it.
    pub(crate) fn let_go(mut self) {
        let deadline = Instant::now() + TO_LET_GO;
        while self.is_busy() && Instant::now() < deadline {
            for index in (0..self.requests.len()).rev() {
                let (mut flag, mut status) = (0, MaybeUninit::uninit());
                let request = &mut self.requests[index];
                // SAFETY: the pending request holds the memory of the request. The status is not read. A request that
                // has failed is complete, and MPI has taken its handle away.
                let is_over = unsafe {
                    ffi::MPI_Test(request, &mut flag, status.as_mut_ptr());
                    flag != 0 || *request == ffi::RSMPI_REQUEST_NULL
                };
                if is_over {
                    self.requests.swap_remove(index);
                    self.pending.swap_remove(index);
                }
            }
            std::thread::yield_now();
        }
    }
}

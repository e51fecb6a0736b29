//! Endpoints after a death, in jobs that survive deaths of ranks.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use chimera_core::comm::CommError;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use mpi::ffi;

use super::MpiEndpoint;
use crate::error::Failure;

/// Time for a death that another rank has reported to become known here.
const TO_LEARN: Duration = Duration::from_millis(500);
/// Time for MPI to release pending requests of a revoked communicator.
const TO_LET_GO: Duration = Duration::from_millis(500);

impl MpiEndpoint {
    pub(crate) fn survives(&self) -> bool {
        self.survivable.is_some()
    }

    /// Makes all calls on the communicator fail, on every rank.
    pub(crate) fn revoke(&self) {
        if let Some(comm) = &self.survivable {
            comm.revoke();
        }
    }

    /// Returns the cause of a failed call: a death, if MPI reports one.
    pub(crate) fn cause(&self, reason: Failure) -> CommError {
        let Some(comm) = &self.survivable else { return CommError::Failed(reason) };
        let deadline = Instant::now() + TO_LEARN;
        loop {
            if let Some(from) = comm.first_dead().map(|rank| Rank(rank as u32)) {
                return CommError::Lost { from, what: "everything it had to".into() };
            }
            if !comm.is_revoked() {
                return CommError::Failed(reason);
            }
            if Instant::now() > deadline {
                let message = "another rank reported a death that is not known here";
                let fault = Fault::new(Class::PeerLost, self.me, message);
                return CommError::Aborted(Fault { peer: Some(self.me), ..fault });
            }
            comm.look();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits a short time until MPI has released the pending requests of a revoked communicator.
    /// The memory of the others is leaked, since MPI may still write to it.
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

//! Meetings at which ranks get their ends of a transport: at the start, and after each death.

use chimera_schedule::ids::Rank;

use super::{Comm, CommError, Host, HostStaged};
use crate::device::Device;

/// The meeting place of all ranks of a training, as seen by one rank.
///
/// The replacement of a dead rank comes to the next meeting under the same rank number. Without a
/// replacement, the others may meet without that rank. The ends of an earlier meeting are of no use
/// afterwards: no message crosses from one meeting to another.
pub trait Rendezvous<C> {
    /// Waits until every expected rank has come, and returns this rank's end of a fresh transport;
    /// `None` if some rank has ended successfully, since then all have finished training.
    ///
    /// # Errors
    /// If a rank has ended for a cause that cannot be survived, or a dead rank is not replaced.
    fn meet(&mut self) -> Result<Option<Meeting<C>>, CommError>;
}

/// Meetings of ranks with devices, on top of meetings that give transports of host tensors. Tensors
/// are [staged](HostStaged) through the host.
pub struct StagedRendezvous<D, R> {
    /// The device of this rank.
    pub device: D,
    /// The underlying meetings.
    pub inner: R,
}

impl<D, C, R> Rendezvous<HostStaged<D, C>> for StagedRendezvous<D, R>
where
    D: Device,
    C: Comm<Host>,
    R: Rendezvous<C>,
{
    fn meet(&mut self) -> Result<Option<Meeting<HostStaged<D, C>>>, CommError> {
        let met = self.inner.meet()?;
        Ok(met.map(|Meeting { comm, is_first, present }| {
            let comm = HostStaged::new(self.device.clone(), comm);
            Meeting { comm, is_first, present }
        }))
    }
}

/// A borrowed meeting place is one too.
impl<C, R: Rendezvous<C> + ?Sized> Rendezvous<C> for &mut R {
    fn meet(&mut self) -> Result<Option<Meeting<C>>, CommError> {
        (**self).meet()
    }
}

/// The result of a meeting for one rank.
#[derive(Debug)]
pub struct Meeting<C> {
    /// This rank's end of the transport.
    pub comm: C,
    /// Whether this is the first meeting. Later, a rank without state replaces a dead rank.
    pub is_first: bool,
    /// The ranks of the job that are present, ascending. Rank `i` of the transport is the `i`-th.
    pub present: Vec<Rank>,
}

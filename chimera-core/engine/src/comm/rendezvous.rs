//! Where ranks meet to get their ends of a transport: at the start, and again whenever one of them has died.

use chimera_schedule::ids::Rank;

use super::{Comm, CommError, Host, HostStaged};
use crate::device::Device;

/// The place where all ranks of a training meet. One rank's view of it.
///
/// Who takes the place of a dead rank comes to the next meeting under that rank's number. Where nobody does, the others may
/// meet without it. An end of an earlier meeting is of no use after it: no message of one comes to the other.
pub trait Rendezvous<C> {
    /// Waits until every rank is there that is to come, and returns this rank's end of a fresh transport of all; `None` if some rank has
    /// ended well, which it does only after all of them have nothing left to train.
    ///
    /// # Errors
    /// If a rank has ended for a cause that nobody survives, or a dead one is not replaced.
    fn meet(&mut self) -> Result<Option<Meeting<C>>, CommError>;
}

/// A meeting place of ranks with devices over one whose transports carry host tensors, which are [staged](HostStaged).
pub struct StagedRendezvous<D, R> {
    /// The device of this rank.
    pub device: D,
    /// Where the ranks meet.
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

/// What a rank takes from a meeting.
#[derive(Debug)]
pub struct Meeting<C> {
    /// Its end of the transport.
    pub comm: C,
    /// Whether it is the first meeting of all. At a later one, who has no state yet takes a dead rank's place.
    pub is_first: bool,
    /// The ranks of the whole job that are there, ascending: the transport's rank i is the i-th of them.
    pub present: Vec<Rank>,
}

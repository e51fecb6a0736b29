//! Ranks over MPI.

use anyhow::Result;
use chimera_comm_mpi::{Mpi, MpiRendezvous};
use chimera_core::comm::Process;
#[cfg(all(unix, debug_assertions))]
use chimera_core::comm::ProcessRendezvous;

#[cfg(all(unix, debug_assertions))]
use super::fault_injection;
use super::{Rank, RankWork, Train, console};
use crate::run::{run_rank, run_surviving_rank, with_process};
use crate::settings::{Config, Evict, Survive};

/// The name of the transport.
const MPI: &str = "MPI";

/// Trains as the rank of this process, until the end of the rank.
pub(super) fn run(train: &Train, config: Result<Config>, why: &str) -> Result<()> {
    let rank = Rank::new(train, MPI, format!("{}; {why}", Mpi::library()));
    let config = match config {
        Ok(config) if config.devices.survive != Survive::Off => {
            return run_surviving_rank(&rank, &config, |patience, warn| {
                let meetings = MpiRendezvous::start(patience, warn)?;
                Ok(meetings.map(|meetings| as_set(meetings, &config)))
            });
        }
        config => config,
    };
    run_rank(&rank, config, Mpi::start)
}

/// Sets what becomes of dead and stalled ranks.
fn as_set(mut meetings: MpiRendezvous, config: &Config) -> MpiRendezvous {
    if config.devices.survive == Survive::Narrow {
        meetings = meetings.without_replacements();
    }
    if config.devices.evict == Evict::Stalled {
        meetings = meetings.evicting_stalled();
    }
    #[cfg(all(unix, debug_assertions))]
    fault_injection::this_is(meetings.rank(), meetings.is_replacement());
    meetings
}

/// Lets `work` use MPI for tensors of up to `longest` elements, passing the name of the library, and
/// leaves together with the other ranks.
pub(crate) fn with<T>(longest: usize, work: &RankWork<'_, T>) -> Result<Option<T>> {
    with_process(console(MPI), Mpi::start, |mpi| {
        mpi.control().expect_tensors(longest);
        work(mpi, &Mpi::library())
    })
}

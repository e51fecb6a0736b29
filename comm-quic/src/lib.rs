//! Chimera's messages over QUIC, between machines that know each other by keys.
//!
//! A [`Host`] listens. Others [`join`] it with a [`Ticket`] and get a rank, the settings of the run
//! and the keys of all members. Then every two ranks connect. [`Quic`] is a rank's end: a
//! [`Process`](chimera_core::comm::Process) of the engine, for tensors in host memory.
//!
//! In a [`QuicRendezvous`] ranks meet again after one of them has died or is out of reach. A machine that
//! joins then takes the free place.
//!
//! Machines that cannot reach one another meet at a [`Relay`], which forwards their packets.
//!
//! All traffic is encrypted (TLS 1.3), and both ends of every connection prove their keys. The
//! library's runtime (tokio) has two threads of its own; nothing outside of this crate is async.
//! Each message is a stream, so a large one does not hold up a small one.

mod cluster;
mod dial;
mod door;
mod files;
mod guest;
mod key;
mod meetings;
mod mesh;
mod message;
mod net;
mod probe;
mod relay;
mod rendezvous;
mod seat;
mod ticket;
mod tls;
mod wire;

use std::net::SocketAddr;

use chimera_core::comm::{CommError, Framed};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

pub use cluster::Cluster;
pub use files::{HostFiles, Offer, PlaceOf};
pub use guest::{Guest, Wish};
pub use key::{Key, PublicKey};
pub use meetings::{Event, Fits, QuicRendezvous, Survival};
pub use net::addresses;
pub use relay::{Limits, Pass, Relay, RelayAddress, RelayEvent, RelayKey};
pub use rendezvous::Host;
pub use seat::{Seat, join};
pub use ticket::Ticket;
pub use wire::QuicWire;

/// One rank's end of the transport.
pub type Quic = Framed<QuicWire>;

/// The reason that ranks do not meet.
#[derive(Debug, thiserror::Error)]
pub enum QuicError {
    /// A key cannot be made or used.
    #[error("keys: {0}")]
    Keys(String),
    /// A text is not a ticket.
    #[error("this is not a ticket: copy all of what `chimera host` prints")]
    NoTicket,
    /// A ticket is too old.
    #[error("the ticket has expired: start `chimera host` again for a new one")]
    Expired,
    /// The system cannot open a socket, or start threads.
    #[error("the network: {0}")]
    Network(String),
    /// The host does not answer, or refuses the key.
    #[error("cannot join the host at {at}: {reason}")]
    Unreachable {
        /// Addresses of the host.
        at: String,
        /// The last failure.
        reason: String,
    },
    /// A relay cannot be used.
    #[error("relay {at}: {reason}")]
    Relay {
        /// Its address.
        at: String,
        /// The problem.
        reason: String,
    },
    /// The host refuses this machine.
    #[error("the host refuses this machine: {0}")]
    Refused(String),
    /// The run has ended, and there was no free place.
    #[error("the run has ended; this machine was not needed")]
    NotNeeded,
    /// Not all ranks came in time.
    #[error("waited {waited_s} s, and {missing}: start them, or wait longer")]
    Missing {
        /// Length of the wait in seconds.
        waited_s: u64,
        /// The ranks that are missing, in words.
        missing: String,
    },
    /// Nobody took a free place.
    #[error(
        "nobody took the place of {ranks} for {waited_s} s: start again with --resume auto, or choose \
         --survive narrow, by which the others train on"
    )]
    NotTaken {
        /// The ranks.
        ranks: String,
        /// Length of the wait in seconds.
        waited_s: u64,
    },
    /// A file that the host offers does not arrive whole.
    #[error("file {name} of the host: {reason}")]
    File {
        /// Name of the file.
        name: String,
        /// The problem.
        reason: String,
    },
}

impl From<QuicError> for CommError {
    fn from(error: QuicError) -> CommError {
        let message = error.to_string();
        match error {
            QuicError::NotTaken { .. } => {
                CommError::Aborted(Fault::new(Class::PeerLost, Rank(0), message))
            }
            _ => CommError::Unsupported(message),
        }
    }
}

/// Lists addresses in words.
fn listed(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(|address| relay::shown(*address)).collect::<Vec<_>>().join(", ")
}

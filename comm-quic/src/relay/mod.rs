//! Relays, for machines that cannot reach one another. A relay forwards datagrams between the members of
//! a session. They are QUIC packets, encrypted from end to end: the relay has no key of any run.
//!
//! Every member of a session has an id that follows from its public key. Datagrams to it go to the
//! relay's socket, with the id in front; QUIC knows the member by an [address](id) that stands for the
//! id. So a member may change its network, and its peers notice nothing.

mod frame;
mod id;
mod link;
mod pass;
mod server;
mod sessions;
mod socket;

pub(crate) use id::{Id, is_relayed, shown};
pub(crate) use link::{Link, Membership};
pub(crate) use pass::{N_NONCE, N_TAG};
pub use pass::{Pass, RelayAddress, RelayKey};
pub use server::{Relay, RelayEvent};
pub use sessions::Limits;
pub(crate) use socket::endpoint;

//! Connects every two ranks. The later rank connects to the earlier one; their keys identify them,
//! and a number identifies the meeting.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use chimera_core::ids::{Rank, listed};
use quinn::{Connection, Endpoint, ServerConfig};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::QuicError;
use crate::dial::{Dial, Member, confirm, dial};
use crate::door::Proven;
use crate::guest::Guest;
use crate::key::{Key, PublicKey};
use crate::relay::{Link, is_relayed};
use crate::tls::{Admitted, Purpose};

/// Time for whoever has proven its key to say for which meeting it comes.
const TO_CONFIRM: Duration = Duration::from_secs(3);
/// This machine's socket, and those who have proven their keys there.
pub(crate) struct Socket {
    pub(crate) endpoint: Endpoint,
    pub(crate) key: Key,
    pub(crate) admitted: Admitted,
    /// One for all handshakes: another would not know the proofs of addresses that this one gave out.
    pub(crate) server: ServerConfig,
    /// Machines that ask for a place.
    pub(crate) joining: mpsc::Receiver<Guest>,
    /// Ranks that connect.
    pub(crate) ranks: mpsc::Receiver<Proven>,
    /// The relay by which ranks reach each other where no direct way leads to them.
    pub(crate) link: Option<Arc<Link>>,
}

/// The ranks that are to connect with each other.
#[derive(Clone, Copy)]
pub(crate) struct Mesh<'m> {
    pub(crate) me: Rank,
    pub(crate) members: &'m [Member],
    /// Address by which this machine reached the host, which may be on one machine with members that
    /// know each other by the loopback.
    pub(crate) host: Option<IpAddr>,
    /// The number of the meeting.
    pub(crate) meeting: u64,
}

/// Ranks that did not connect in time, and the reason.
pub(crate) struct Unconnected {
    pub(crate) missing: Vec<Rank>,
    pub(crate) why: QuicError,
}

impl Socket {
    /// Answers those who have one of these keys, and nobody else from now on.
    pub(crate) fn admit(&self, keys: impl IntoIterator<Item = (PublicKey, Purpose)>) {
        self.admitted.set(keys);
        self.endpoint.set_server_config(Some(self.server.clone()));
    }
}

/// Connects one rank with all other members, whose keys are admitted.
pub(crate) async fn connect(
    socket: &mut Socket,
    mesh: Mesh<'_>,
    deadline: Instant,
) -> Result<BTreeMap<Rank, Connection>, Unconnected> {
    let Mesh { me, members, host, meeting } = mesh;
    let began = Instant::now();
    let mut dialled = JoinSet::new();
    for (rank, member) in (0..me.0).map(Rank).zip(members) {
        let there = with_host(&member.addresses, host);
        let (endpoint, key, peer) = (socket.endpoint.clone(), socket.key.clone(), member.key);
        let by_relay = socket.link.is_some();
        dialled.spawn(async move {
            let (purpose, addresses) = (Purpose::Rank, &*there);
            let to = Dial { peer, purpose, meeting, addresses, by_relay };
            (rank, dial(&endpoint, &key, to, deadline).await)
        });
    }
    let mut confirmed = JoinSet::new();
    let (mut connections, mut why) = (BTreeMap::new(), None);
    let is_whole = |there: &BTreeMap<_, _>| there.len() + 1 == members.len();
    while !is_whole(&connections) {
        tokio::select! {
            Some(Ok((rank, done))) = dialled.join_next(), if !dialled.is_empty() => match done {
                Ok(connection) => drop(connections.insert(rank, connection)),
                Err(error) => why = Some(error),
            },
            Some(proven) = socket.ranks.recv() => {
                let rank = members.iter().position(|member| member.key == proven.key);
                let rank = rank.map(|rank| Rank(rank as u32)).filter(|rank| *rank > me);
                let Some(rank) = rank else { continue };
                confirmed.spawn(async move {
                    let done = timeout(TO_CONFIRM, confirm(&proven.connection, meeting)).await;
                    done.ok().flatten().map(|()| (rank, proven.connection))
                });
            }
            Some(done) = confirmed.join_next(), if !confirmed.is_empty() => {
                connections.extend(done.ok().flatten());
            }
            () = tokio::time::sleep_until(deadline) => break,
        }
    }
    if is_whole(&connections) {
        return Ok(connections);
    }
    let missing = (0..members.len() as u32).map(Rank);
    let missing = missing.filter(|rank| *rank != me && !connections.contains_key(rank));
    let missing: Vec<Rank> = missing.collect();
    let waited_s = began.elapsed().as_secs();
    let late = format!("{} did not connect to {me}", listed(&missing));
    let why = why.unwrap_or(QuicError::Missing { waited_s, missing: late });
    Err(Unconnected { missing, why })
}

/// Returns the addresses of a member, also as seen from another machine.
fn with_host(addresses: &[SocketAddr], host: Option<IpAddr>) -> Vec<SocketAddr> {
    let local = addresses.iter().filter(|address| address.ip().is_loopback());
    let host = host.filter(|host| !is_relayed(&SocketAddr::new(*host, 1)));
    let seen = host.map(|host| local.map(move |a| SocketAddr::new(host, a.port())));
    addresses.iter().copied().chain(seen.into_iter().flatten()).collect()
}

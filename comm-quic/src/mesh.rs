//! Connects every two ranks. The later rank connects to the earlier one; keys say who is who, and a
//! number says for which meeting they connect.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use chimera_core::ids::{Rank, listed};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::QuicError;
use crate::door::Proven;
use crate::guest::Guest;
use crate::key::{Key, PublicKey};
use crate::net::transport;
use crate::tls::{self, Admitted, Purpose};

/// Time for the handshake of one try to connect.
const TO_CONNECT: Duration = Duration::from_secs(3);
/// Time for whoever has proven its key to say for which meeting it comes.
const TO_CONFIRM: Duration = Duration::from_secs(3);
/// Time between two tries: a rank may not know yet who its peers are.
const BETWEEN: Duration = Duration::from_millis(50);

/// One rank, as all others know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) key: PublicKey,
    /// Addresses by which it may be reached.
    pub(crate) addresses: Vec<SocketAddr>,
}

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
        dialled.spawn(async move {
            let to = Dial { peer, purpose: Purpose::Rank, meeting, addresses: &there };
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
    let seen = host.map(|host| local.map(move |a| SocketAddr::new(host, a.port())));
    addresses.iter().copied().chain(seen.into_iter().flatten()).collect()
}

/// The peer to connect to.
#[derive(Clone, Copy)]
pub(crate) struct Dial<'d> {
    pub(crate) peer: PublicKey,
    pub(crate) purpose: Purpose,
    pub(crate) meeting: u64,
    pub(crate) addresses: &'d [SocketAddr],
}

/// Connects to whoever has the key, at one of the addresses, again and again until the deadline.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    key: &Key,
    to: Dial<'_>,
    deadline: Instant,
) -> Result<Connection, QuicError> {
    let Dial { peer, purpose, meeting, addresses } = to;
    let mut config = tls::client(key, peer, purpose)?;
    config.transport_config(transport());
    let mut reason = "it has no address".to_string();
    while Instant::now() < deadline {
        for at in addresses {
            let by = deadline.min(Instant::now() + TO_CONNECT);
            let tried = async {
                let shaken = timeout_at(by, shake_hands(endpoint, config.clone(), *at)).await;
                let no_answer = "no answer; it may have ended, or its run has begun";
                let connection = shaken.unwrap_or_else(|_| Err(no_answer.into()))?;
                // The peer may already count on this connection, so only its end gives it up.
                let taken = timeout_at(deadline, taken(connection, meeting)).await;
                taken.unwrap_or_else(|_| Err("it does not answer".into()))
            };
            match tried.await {
                Ok(connection) => return Ok(connection),
                Err(why) => reason = why,
            }
        }
        sleep(BETWEEN).await;
    }
    Err(QuicError::Unreachable { at: crate::listed(addresses), reason })
}

async fn shake_hands(
    endpoint: &Endpoint,
    config: ClientConfig,
    at: SocketAddr,
) -> Result<Connection, String> {
    let connecting = endpoint.connect_with(config, at, "chimera").map_err(|e| e.to_string())?;
    connecting.await.map_err(|e| e.to_string())
}

/// Says for which meeting this machine comes, and waits until the peer has taken the connection: it
/// looks at this machine's key after the handshake.
async fn taken(connection: Connection, meeting: u64) -> Result<Connection, String> {
    let (mut send, mut recv) = connection.open_bi().await.map_err(|e| e.to_string())?;
    send.write_all(&meeting.to_le_bytes()).await.map_err(|e| e.to_string())?;
    recv.read_exact(&mut [0]).await.map_err(|e| e.to_string())?;
    Ok(connection)
}

/// Tells a peer that its key is accepted, if it comes for this meeting.
pub(crate) async fn confirm(connection: &Connection, meeting: u64) -> Option<()> {
    let (mut send, mut recv) = connection.accept_bi().await.ok()?;
    let mut number = [0; 8];
    recv.read_exact(&mut number).await.ok()?;
    if u64::from_le_bytes(number) != meeting {
        connection.close(1u8.into(), b"another meeting");
        return None;
    }
    send.write_all(&[0]).await.ok()?;
    send.finish().ok()
}

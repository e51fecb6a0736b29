//! One machine connects to another, which confirms that it accepts the connection.

use std::net::SocketAddr;
use std::time::Duration;

use quinn::{ClientConfig, Connection, Endpoint};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::QuicError;
use crate::key::{Key, PublicKey};
use crate::net::transport;
use crate::relay::{Id, is_relayed};
use crate::tls::{self, Purpose};

/// Time for the handshake of one try to connect.
const TO_CONNECT: Duration = Duration::from_secs(3);
/// Time for direct ways to lead to a peer before a relay is tried as well.
const HEAD_START: Duration = Duration::from_secs(2);
/// Time between two tries: a rank may not know yet who its peers are.
const BETWEEN: Duration = Duration::from_millis(50);

/// One rank, as all others know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) key: PublicKey,
    /// Addresses by which it may be reached.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// The peer to connect to.
#[derive(Clone, Copy)]
pub(crate) struct Dial<'d> {
    pub(crate) peer: PublicKey,
    pub(crate) purpose: Purpose,
    pub(crate) meeting: u64,
    pub(crate) addresses: &'d [SocketAddr],
    /// Whether the peer may also be reached through the relay of this machine's socket.
    pub(crate) by_relay: bool,
}

/// Connects to whoever has the key, at one of the addresses, again and again until the deadline.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    key: &Key,
    to: Dial<'_>,
    deadline: Instant,
) -> Result<Connection, QuicError> {
    let Dial { peer, purpose, meeting, addresses, .. } = to;
    let mut config = tls::client(key, peer, purpose)?;
    config.transport_config(transport());
    let mut reason = String::new();
    while Instant::now() < deadline {
        match reach(endpoint, &config, to, deadline).await {
            // The peer may already count on this connection, so only its end gives it up.
            Ok(connection) => match timeout_at(deadline, taken(connection, meeting)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(why)) => reason = why,
                Err(_) => reason = "it does not answer".into(),
            },
            Err(why) => reason = why,
        }
        sleep(BETWEEN).await;
    }
    Err(QuicError::Unreachable { at: crate::listed(addresses), reason })
}

/// Shakes hands with a peer: at its addresses, one after the other, and soon also through the relay.
async fn reach(
    endpoint: &Endpoint,
    config: &ClientConfig,
    to: Dial<'_>,
    deadline: Instant,
) -> Result<Connection, String> {
    let shake = async |at: SocketAddr| {
        let by = deadline.min(Instant::now() + TO_CONNECT);
        let shaken = timeout_at(by, shake_hands(endpoint, config.clone(), at)).await;
        shaken.unwrap_or_else(|_| Err("no answer; it may have ended, or its run has begun".into()))
    };
    let direct = async {
        let mut reason = "it has no address".to_string();
        for at in to.addresses.iter().filter(|at| !is_relayed(at)) {
            match shake(*at).await {
                Ok(connection) => return Ok(connection),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    };
    if !to.by_relay {
        return direct.await;
    }
    tokio::pin!(direct);
    let is_v6 = endpoint.local_addr().is_ok_and(|own| own.is_ipv6());
    let relayed = shake(Id::of(to.peer).address(is_v6));
    match timeout(HEAD_START, &mut direct).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(_)) => return relayed.await,
        Err(_) => {}
    }
    tokio::pin!(relayed);
    tokio::select! {
        shaken = &mut direct => if shaken.is_ok() { shaken } else { relayed.await },
        shaken = &mut relayed => if shaken.is_ok() { shaken } else { direct.await },
    }
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

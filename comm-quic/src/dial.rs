//! One machine connects to another, which confirms that it accepts the connection.

use std::net::SocketAddr;
use std::time::Duration;

use quinn::{ClientConfig, Connection, Endpoint};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout_at};

use crate::QuicError;
use crate::key::{Key, PublicKey};
use crate::net::transport;
use crate::tls::{self, Purpose};

/// Time for the handshake of one try to connect.
const TO_CONNECT: Duration = Duration::from_secs(3);
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

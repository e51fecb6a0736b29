//! Finds peers whose process has been killed. QUIC only sees their silence, but their system answers
//! that the port is closed (ICMP), as it does for TCP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use quinn::Connection;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::relay::is_relayed;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Looks without a packet before the port is asked for. A living peer sends one every second, so a
/// forged answer ends no connection.
const MIN_SILENT: u32 = 4;
/// Time for the answer.
const TO_ANSWER: Duration = Duration::from_millis(200);

/// Closes a connection once its peer is silent and its port is closed. A relay does not tell of its port.
pub(crate) async fn watch(connection: Connection) {
    if is_relayed(&connection.remote_address()) {
        return;
    }
    let Some(socket) = beside(connection.remote_address()).await else { return };
    let received = || connection.stats().udp_rx.datagrams;
    let (mut before, mut n_silent) = (received(), 0);
    while timeout(LOOK, connection.closed()).await.is_err() {
        let now = received();
        n_silent = if now == before { n_silent + 1 } else { 0 };
        before = now;
        if n_silent >= MIN_SILENT && is_closed(&socket).await {
            connection.close(3u8.into(), b"its process has ended");
            return;
        }
    }
}

/// Opens another socket to a peer, since only a socket with one peer gets the answer.
async fn beside(peer: SocketAddr) -> Option<UdpSocket> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(peer).await.ok()?;
    Some(socket)
}

/// Returns true if the peer's system says that nobody listens. A living peer drops the packet, which is too short.
async fn is_closed(socket: &UdpSocket) -> bool {
    let is_refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    if socket.send(&[0]).await.as_ref().is_err_and(is_refused) {
        return true;
    }
    let answer = timeout(TO_ANSWER, socket.recv(&mut [0])).await;
    answer.is_ok_and(|answer| answer.as_ref().is_err_and(is_refused))
}

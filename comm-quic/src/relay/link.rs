//! This machine's place at a relay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::Duration;

use quinn::udp::{EcnCodepoint, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::sync::watch;
use tokio::time::sleep;

use super::frame::{FromRelay, N_CLAIM, Refusal, ToRelay, Wanted};
use super::id::Id;
use super::pass::Pass;
use crate::key::Key;
use crate::{QuicError, net};

/// Time between two questions for a place, before the first answer and after it. A relay keeps a place
/// for six of the latter, and a NAT keeps a port open for longer than one.
const UNTIL_ANSWER: Duration = Duration::from_millis(250);
pub(super) const BETWEEN: Duration = Duration::from_secs(5);

/// The answer of a relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Membership {
    Asked,
    Entered,
    Refused(&'static str),
}

/// A socket to a relay, and this machine's place there.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) socket: Arc<dyn AsyncUdpSocket>,
    pub(crate) relay: SocketAddr,
    wanted: Wanted,
    membership: watch::Sender<Membership>,
}

impl Link {
    /// Opens a socket, and begins to ask for a place. Calls `warn` if the relay refuses. Call it within
    /// the runtime.
    pub(crate) fn open(pass: &Pass, key: &Key, warn: fn(&str)) -> Result<Arc<Link>, QuicError> {
        let any: IpAddr = match pass.at {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let error = |e: std::io::Error| net::cannot_open(any, &e);
        let socket = UdpSocket::bind((any, 0)).map_err(error)?;
        let socket = TokioRuntime.wrap_udp_socket(socket).map_err(error)?;
        let secret = blake3::derive_key("chimera quic 2026 claim at a relay", &key.to_bytes());
        let claim: [u8; N_CLAIM] = std::array::from_fn(|nth| secret[nth]);
        let id = Id::of(key.public()?);
        let wanted = Wanted { nonce: pass.nonce, tag: pass.tag, id, claim };
        let membership = watch::Sender::new(Membership::Asked);
        let link = Arc::new(Link { socket, relay: pass.at, wanted, membership });
        tokio::spawn(keep(Arc::downgrade(&link), warn));
        Ok(link)
    }

    /// Waits until the relay has answered.
    pub(crate) async fn answered(&self) -> Membership {
        let mut membership = self.membership.subscribe();
        let answered = membership.wait_for(|now| *now != Membership::Asked).await;
        answered.map_or(Membership::Asked, |now| *now) // its sender lives as long as this
    }

    /// Sends datagrams to the relay. All but the last have `segment_size` bytes.
    pub(super) fn send(
        &self,
        contents: &[u8],
        segment_size: Option<usize>,
        ecn: Option<EcnCodepoint>,
    ) -> std::io::Result<()> {
        let destination = self.relay;
        self.socket.try_send(&Transmit { destination, ecn, contents, segment_size, src_ip: None })
    }

    /// Takes an answer of the relay. Those that are lost come again.
    pub(super) fn take(&self, answer: &FromRelay) {
        let claim = self.wanted.claim;
        match answer {
            FromRelay::Prove(of, proof) if *of == claim => {
                let enter = ToRelay::Enter(self.wanted, *proof).to_bytes();
                let _ = self.send(&enter, None, None);
            }
            FromRelay::Entered(of) if *of == claim => {
                self.membership.send_replace(Membership::Entered);
            }
            FromRelay::Refused(of, why) if *of == claim => {
                let why = why.map_or("use equal versions", Refusal::in_words);
                self.membership.send_replace(Membership::Refused(why));
            }
            _ => {}
        }
    }
}

/// Asks for a place again and again, while the link is in use.
async fn keep(link: Weak<Link>, warn: fn(&str)) {
    let mut warned = None;
    while let Some(link) = link.upgrade() {
        let _ = link.send(&ToRelay::Ask(link.wanted).to_bytes(), None, None);
        let membership = *link.membership.borrow();
        if let Membership::Refused(why) = membership
            && warned.replace(why) != Some(why)
        {
            warn(&format!("the relay at {} refuses this machine: {why}", link.relay));
        }
        drop(link);
        let is_answered = membership != Membership::Asked;
        sleep(if is_answered { BETWEEN } else { UNTIL_ANSWER }).await;
    }
}

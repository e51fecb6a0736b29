//! The place of a machine that joins a host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use chimera_core::comm::Framed;
use chimera_core::ids::Rank;
use quinn::{Connection, ConnectionError};
use tokio::time::{Instant, sleep, timeout_at};

use crate::dial::{Dial, Member, dial};
use crate::files::{HostFiles, Request};
use crate::guest::{Answer, Hello};
use crate::mesh::{self, Mesh, Socket};
use crate::message::{hear, tell};
use crate::net::{addresses, runtime};
use crate::relay::shown;
use crate::rendezvous::open;
use crate::tls::Purpose;
use crate::wire::QuicWire;
use crate::{Key, Quic, QuicError, Ticket, Wish};

/// Bytes of an answer with the settings of the run.
const MAX_ANSWER: usize = 32 << 20;

/// Bytes of the host's word that all ranks have met.
const MAX_WORD: usize = 16;
/// Time for the host to find that it has lost a machine, after that machine has found it.
const TO_FORGET: Duration = Duration::from_secs(2);

/// A rank of the run, as the host has assigned it.
pub struct Seat {
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub n_ranks: u32,
    /// The host's settings of the run.
    pub plan: String,
    /// Files of the host.
    pub files: HostFiles,
    pub(crate) members: Vec<Member>,
    pub(crate) socket: Socket,
}

/// Asks a host for a place, and waits up to `patience` until all ranks have come. The host must
/// answer within `to_answer`.
///
/// # Errors
/// If no host with the ticket's key answers, or it refuses.
pub fn join(
    ticket: &Ticket,
    wish: Wish,
    to_answer: Duration,
    patience: Duration,
    warn: fn(&str),
) -> Result<Seat, QuicError> {
    if ticket.has_expired() {
        return Err(QuicError::Expired);
    }
    let is_v6 = !ticket.addresses.is_empty() && ticket.addresses.iter().all(SocketAddr::is_ipv6);
    let any =
        if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
    let socket = open(SocketAddr::new(any, 0), Key::random()?, ticket.relay.as_ref(), warn)?;
    let at = socket.endpoint.local_addr().map_err(|e| QuicError::Network(e.to_string()))?;
    let version = env!("CARGO_PKG_VERSION").to_string();
    let hello = Hello { version, key: socket.key.public()?, addresses: addresses(at.port()), wish };
    let (deadline, endpoint) = (Instant::now() + patience, socket.endpoint.clone());
    let asking = find(ticket, &socket, &hello, (to_answer, deadline), warn);
    let found = runtime()?.block_on(asking);
    let seat = found.and_then(|(host, answer)| seat(host, answer, socket));
    seat.inspect_err(|_| endpoint.close(0u8.into(), b"it has no place"))
}

/// Asks the host until it answers.
async fn find(
    ticket: &Ticket,
    socket: &Socket,
    hello: &Hello,
    (to_answer, deadline): (Duration, Instant),
    warn: fn(&str),
) -> Result<(Connection, Answer), QuicError> {
    let Ticket { join, host, addresses, relay, .. } = ticket;
    let (peer, purpose, by_relay) = (*host, Purpose::Join, relay.is_some());
    let to = Dial { peer, purpose, meeting: 0, addresses, by_relay };
    loop {
        let by = deadline.min(Instant::now() + to_answer);
        let there = dial(&socket.endpoint, join, to, by).await?;
        let lost = |reason: &str| QuicError::Unreachable {
            at: shown(there.remote_address()),
            reason: reason.into(),
        };
        let answer = timeout_at(deadline, ask(&there, hello)).await;
        match answer.map_err(|_| lost("not all ranks have come"))? {
            Some(answer) => return Ok((there, answer)),
            // This machine has slept, or its network was away.
            None if matches!(there.close_reason(), Some(ConnectionError::TimedOut)) => {
                warn("the host was out of reach: asking it again");
                sleep(TO_FORGET).await;
            }
            None => {
                let why = there.close_reason().map(|e| e.to_string()).unwrap_or_default();
                return Err(lost(&format!("it has ended ({why})")));
            }
        }
    }
}

/// Takes the place that the host gives.
fn seat(host: Connection, answer: Answer, socket: Socket) -> Result<Seat, QuicError> {
    match answer {
        Answer::Refused(reason) => Err(QuicError::Refused(reason)),
        Answer::NotNeeded => Err(QuicError::NotNeeded),
        Answer::Place { rank, n_ranks, members, plan, offers } => {
            if rank == 0 || rank >= n_ranks {
                return Err(QuicError::Refused(format!("it gives rank {rank} of {n_ranks}")));
            }
            let files = HostFiles { host, offers: Arc::new(offers) };
            Ok(Seat { rank: Rank(rank), n_ranks, plan, files, members, socket })
        }
    }
}

impl Seat {
    /// Returns true if the run goes on after deaths, so that this rank comes to meetings.
    pub fn has_meetings(&self) -> bool {
        self.members.is_empty()
    }

    /// Connects with all other ranks.
    ///
    /// # Errors
    /// If one does not connect in time.
    pub fn connect(mut self, patience: Duration) -> Result<Quic, QuicError> {
        let there = self.files.host.remote_address();
        if let Some(host) = self.members.first_mut() {
            host.addresses = vec![there];
        }
        let deadline = Instant::now() + patience;
        let (me, members) = (self.rank, &self.members);
        let host = self.files.host.clone();
        let connections = runtime()?.block_on(async {
            let socket = &mut self.socket;
            socket.admit(members.iter().map(|member| (member.key, Purpose::Rank)));
            let mesh = Mesh { me, members, host: Some(there.ip()), meeting: 0 };
            let all = async {
                let connected = mesh::connect(socket, mesh, deadline).await;
                let connections = connected.map_err(|unconnected| unconnected.why)?;
                let reason = match timeout_at(deadline, all_met(&host)).await {
                    Ok(Some(())) => return Ok(connections),
                    Ok(None) => "it says nothing more",
                    Err(_) => "not all ranks have connected with each other",
                };
                Err(QuicError::Unreachable { at: shown(there), reason: reason.into() })
            };
            tokio::select! {
                all = all => all,
                why = host.closed() => {
                    let reason = format!("it has left ({why})");
                    Err(QuicError::Unreachable { at: shown(there), reason })
                }
            }
        })?;
        self.socket.endpoint.set_server_config(None);
        let wire = QuicWire::new(Some(self.socket.endpoint), connections, runtime()?.handle());
        Ok(Framed::new(wire.joined_by(self.files.host), me, self.n_ranks))
    }
}

/// Tells the host that this rank has connected with all others, and waits until all have.
async fn all_met(host: &Connection) -> Option<()> {
    let (mut send, mut recv) = host.open_bi().await.ok()?;
    tell(&mut send, &Request::Meet(true)).await.ok()?;
    hear(&mut recv, MAX_WORD).await.filter(|have_met| *have_met).map(|_: bool| ())
}

/// Sends what this machine asks for, and waits for the answer.
async fn ask(host: &Connection, hello: &Hello) -> Option<Answer> {
    let (mut send, mut recv) = host.open_bi().await.ok()?;
    send.write_all(&serde_json::to_vec(hello).ok()?).await.ok()?;
    send.finish().ok()?;
    serde_json::from_slice(&recv.read_to_end(MAX_ANSWER).await.ok()?).ok()
}

//! The meeting of ranks: a host gives places to those who have its ticket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chimera_core::comm::Framed;
use chimera_core::ids::Rank;
use quinn::{Connection, SendStream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::door::{Proven, accept};
use crate::files::{self, HostFiles, Offer, PlaceOf};
use crate::mesh::{self, Member, Socket, confirm, dial};
use crate::net::{addresses, endpoint, runtime};
use crate::tls::{Admitted, Purpose};
use crate::wire::QuicWire;
use crate::{Key, PublicKey, Quic, QuicError, Ticket};

/// Bytes of a request for a place, and of the answer with the settings of the run.
const MAX_HELLO: usize = 64 << 10;
const MAX_ANSWER: usize = 32 << 20;
/// Time for a member to say what it wants.
const TO_SAY: Duration = Duration::from_secs(5);

/// The wish of a machine that joins.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Wish {
    /// Its rank, and the number of ranks; `None` if the host is to decide.
    pub place: Option<(u32, u32)>,
    /// A description of what it brings, for the program.
    pub about: String,
}

/// A request for a place.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: String,
    key: PublicKey,
    addresses: Vec<SocketAddr>,
    wish: Wish,
}

/// The answer, once all ranks are there.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Place { rank: u32, members: Vec<Member>, plan: String, offers: Vec<Offer> },
    Refused(String),
}

/// A machine that waits for the others.
pub struct Guest {
    hello: Hello,
    connection: Connection,
    answer: SendStream,
}

impl Guest {
    /// The machine's address, as the host sees it.
    pub fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Round trip time to it.
    pub fn latency(&self) -> Duration {
        self.connection.min_rtt()
    }

    /// Its wish.
    pub fn wish(&self) -> &Wish {
        &self.hello.wish
    }

    /// Returns whether it has left.
    pub fn has_left(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Every address by which it may be reached.
    fn member(&self) -> Member {
        let mut addresses = vec![self.address()];
        addresses.extend(self.hello.addresses.iter().filter(|a| **a != self.address()).take(8));
        Member { key: self.hello.key, addresses }
    }

    async fn refuse(mut self, reason: &str) {
        let _ = say(&mut self.answer, &Answer::Refused(reason.into())).await;
        let _ = timeout(TO_SAY, self.answer.stopped()).await;
        self.connection.close(1u8.into(), reason.as_bytes());
    }
}

/// The rank that the others join: rank 0.
pub struct Host {
    socket: Socket,
    join: PublicKey,
    warn: fn(&str),
}

impl Host {
    /// Listens at an address. `key` is the host's own, and members prove that they have `join`.
    /// Calls `warn` for everybody who is refused.
    ///
    /// # Errors
    /// If the address is not free.
    pub fn open(at: SocketAddr, key: Key, join: &Key, warn: fn(&str)) -> Result<Host, QuicError> {
        let join = join.public()?;
        let socket = open(at, key, warn)?;
        socket.admit([(join, Purpose::Join)])?;
        Ok(Host { socket, join, warn })
    }

    /// The address that it listens at.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn address(&self) -> Result<SocketAddr, QuicError> {
        self.socket.endpoint.local_addr().map_err(|e| QuicError::Network(e.to_string()))
    }

    /// Waits for the next machine that asks for a place, until the deadline.
    ///
    /// # Errors
    /// If the threads of the network have ended.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Guest>, QuicError> {
        let (proven, join, warn) = (&mut self.socket.proven, self.join, self.warn);
        runtime()?.block_on(async {
            let next = async {
                loop {
                    let Some(Proven { connection, key, .. }) = proven.recv().await else {
                        return Err(QuicError::Network("nobody listens any more".into()));
                    };
                    if key != join {
                        continue;
                    }
                    let from = connection.remote_address();
                    match timeout(TO_SAY, greet(connection)).await {
                        Ok(Ok(guest)) => return Ok(Some(guest)),
                        Ok(Err(reason)) => warn(&format!("refused {from}: {reason}")),
                        Err(_) => warn(&format!("refused {from}: it says nothing")),
                    }
                }
            };
            timeout(wait, next).await.unwrap_or(Ok(None))
        })
    }

    /// Refuses a machine, and sends it the reason.
    ///
    /// # Errors
    /// If the threads of the network cannot be used.
    pub fn refuse(&self, guest: Guest, reason: &str) -> Result<(), QuicError> {
        runtime()?.block_on(guest.refuse(reason));
        Ok(())
    }

    /// Starts with these machines as ranks 1, 2, …. Each gets the `plan` and may fetch the `files`, and
    /// send files to where `place_of` says. Nobody else is admitted from now on.
    ///
    /// # Errors
    /// If a file cannot be read, or the ranks do not connect in time.
    pub fn start(
        mut self,
        guests: Vec<Guest>,
        plan: &str,
        files: Vec<PathBuf>,
        place_of: PlaceOf,
        patience: Duration,
    ) -> Result<Quic, QuicError> {
        let offers = files.iter().map(|path| Offer::of(path)).collect::<Result<Vec<_>, _>>()?;
        let own = Member { key: self.socket.key.public()?, addresses: Vec::new() };
        let members: Vec<_> = [own].into_iter().chain(guests.iter().map(Guest::member)).collect();
        let n_ranks = members.len() as u32;
        let deadline = Instant::now() + patience;
        let connections = runtime()?.block_on(async {
            self.socket.admit(members.iter().map(|member| (member.key, Purpose::Rank)))?;
            let files = Arc::new(files);
            let (leaves, mut left) = mpsc::channel(1);
            for (rank, mut guest) in (1..).zip(guests) {
                let (plan, members) = (plan.to_string(), members.clone());
                let answer = Answer::Place { rank, members, plan, offers: offers.clone() };
                let (files, place_of) = (Arc::clone(&files), Arc::clone(&place_of));
                let (connection, leaves) = (guest.connection.clone(), leaves.clone());
                tokio::spawn(async move {
                    let why = connection.closed().await;
                    let _ = leaves.send(format!("rank {rank} has left ({why})")).await;
                });
                tokio::spawn(async move {
                    if say(&mut guest.answer, &answer).await.is_some() {
                        files::serve(guest.connection, Rank(rank), files, place_of).await;
                    }
                });
            }
            let began = Instant::now();
            tokio::select! {
                connected = mesh::connect(&mut self.socket, Rank(0), &members, None, deadline) => connected,
                Some(missing) = left.recv() => {
                    Err(QuicError::Missing { waited_s: began.elapsed().as_secs(), missing })
                }
            }
        })?;
        self.socket.endpoint.set_server_config(None); // whoever comes now gets no handshake
        let wire = QuicWire::new(self.socket.endpoint, connections, runtime()?.handle());
        Ok(Framed::new(wire, Rank(0), n_ranks))
    }
}

/// A rank that has its place.
pub struct Seat {
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub n_ranks: u32,
    /// The host's settings of the run.
    pub plan: String,
    /// Files of the host.
    pub files: HostFiles,
    members: Vec<Member>,
    socket: Socket,
}

/// Asks a host for a place, and waits until all ranks are there, up to `patience`. The host must
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
    let is_v6 = ticket.addresses.iter().all(SocketAddr::is_ipv6);
    let any =
        if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
    let socket = open(SocketAddr::new(any, 0), Key::random()?, warn)?;
    let at = socket.endpoint.local_addr().map_err(|e| QuicError::Network(e.to_string()))?;
    let version = env!("CARGO_PKG_VERSION").to_string();
    let hello = Hello { version, key: socket.key.public()?, addresses: addresses(at.port()), wish };
    let deadline = Instant::now() + patience;
    let (host, answer) = runtime()?.block_on(async {
        let Ticket { join, host, addresses, .. } = ticket;
        let by = deadline.min(Instant::now() + to_answer);
        let there = dial(&socket.endpoint, join, *host, Purpose::Join, addresses, by).await?;
        let answer = timeout_at(deadline, ask(&there, &hello)).await;
        let lost = |reason: &str| QuicError::Unreachable {
            at: there.remote_address().to_string(),
            reason: reason.into(),
        };
        let answer = answer.map_err(|_| lost("not all ranks have come"))?;
        let ended = || there.close_reason().map(|e| e.to_string()).unwrap_or_default();
        let answer = answer.ok_or_else(|| lost(&format!("it has ended ({})", ended())))?;
        Ok::<_, QuicError>((there, answer))
    })?;
    match answer {
        Answer::Refused(reason) => Err(QuicError::Refused(reason)),
        Answer::Place { rank, members, plan, offers } => {
            let n_ranks = members.len() as u32;
            if rank == 0 || rank >= n_ranks {
                return Err(QuicError::Refused(format!("it gives rank {rank} of {n_ranks}")));
            }
            let files = HostFiles { host, offers: Arc::new(offers) };
            Ok(Seat { rank: Rank(rank), n_ranks, plan, files, members, socket })
        }
    }
}

impl Seat {
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
            tokio::select! {
                connected = mesh::connect(socket, me, members, Some(there.ip()), deadline) => connected,
                why = host.closed() => {
                    let reason = format!("it has left ({why})");
                    Err(QuicError::Unreachable { at: there.to_string(), reason })
                }
            }
        })?;
        self.socket.endpoint.set_server_config(None);
        let wire = QuicWire::new(self.socket.endpoint, connections, runtime()?.handle());
        Ok(Framed::new(wire.joined_by(self.files.host), me, self.n_ranks))
    }
}

/// Opens a socket that admits nobody yet.
fn open(at: SocketAddr, key: Key, warn: fn(&str)) -> Result<Socket, QuicError> {
    let runtime = runtime()?;
    let _within = runtime.enter();
    let (endpoint, admitted) = (endpoint(at)?, Admitted::default());
    let (sender, proven) = mpsc::channel(16);
    runtime.spawn(accept(endpoint.clone(), admitted.clone(), sender, warn));
    Ok(Socket { endpoint, key, admitted, proven })
}

/// Reads what a machine asks for. The error says why it is refused.
async fn greet(connection: Connection) -> Result<Guest, String> {
    confirm(&connection).await.ok_or("it has gone")?;
    let (mut answer, mut recv) = connection.accept_bi().await.map_err(|e| e.to_string())?;
    let bytes = recv.read_to_end(MAX_HELLO).await.map_err(|e| e.to_string())?;
    let hello: Hello = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    let version = env!("CARGO_PKG_VERSION");
    if hello.version != version {
        let reason = format!("it is of version {}, and the host of {version}", hello.version);
        let _ = say(&mut answer, &Answer::Refused(reason.clone())).await;
        return Err(reason);
    }
    Ok(Guest { hello, connection, answer })
}

/// Sends what this machine asks for, and waits for the answer.
async fn ask(host: &Connection, hello: &Hello) -> Option<Answer> {
    let (mut send, mut recv) = host.open_bi().await.ok()?;
    send.write_all(&serde_json::to_vec(hello).ok()?).await.ok()?;
    send.finish().ok()?;
    serde_json::from_slice(&recv.read_to_end(MAX_ANSWER).await.ok()?).ok()
}

async fn say(stream: &mut SendStream, answer: &Answer) -> Option<()> {
    stream.write_all(&serde_json::to_vec(answer).ok()?).await.ok()?;
    stream.finish().ok()
}

//! The meeting of ranks: a host gives places to those who have its ticket.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use chimera_core::comm::Framed;
use chimera_core::ids::Rank;
use quinn::{Connection, SendStream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::door::{Proven, Takers, accept};
use crate::files::{self, Comer, Offer, PlaceOf, Shelf};
use crate::mesh::{self, Member, Mesh, Socket, confirm};
use crate::net::{endpoint, runtime};
use crate::tls::{Admitted, Purpose};
use crate::wire::QuicWire;
use crate::{Key, PublicKey, Quic, QuicError};

/// Bytes of a request for a place.
const MAX_HELLO: usize = 64 << 10;
/// Time for a member to say what it wants.
pub(crate) const TO_SAY: Duration = Duration::from_secs(5);

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
pub(crate) struct Hello {
    pub(crate) version: String,
    pub(crate) key: PublicKey,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) wish: Wish,
}

/// The answer, once all ranks are there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Place {
        rank: u32,
        n_ranks: u32,
        members: Vec<Member>,
        plan: String,
        offers: Vec<Offer>,
    },
    Refused(String),
    /// The run has ended without this machine.
    NotNeeded,
}

/// The place that a machine gets.
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) n_ranks: u32,
    pub(crate) plan: String,
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

    /// Its connection.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Gives it a place, and answers its requests until it leaves. `come` takes its wishes to meet.
    pub(crate) async fn seat(
        mut self,
        place: Place,
        members: Vec<Member>,
        index: Arc<AtomicU32>,
        shelf: Arc<Shelf>,
        come: impl Fn(Comer) + Clone + Send + 'static,
    ) {
        let Place { rank, n_ranks, plan } = place;
        let offers = shelf.offers.clone();
        let answer = Answer::Place { rank, n_ranks, members, plan, offers };
        if say(&mut self.answer, &answer).await.is_some() {
            files::serve(self.connection, index, shelf, come).await;
        }
    }

    /// Tells it that the run has ended without it.
    pub(crate) async fn dismiss(mut self) {
        let _ = say(&mut self.answer, &Answer::NotNeeded).await;
        let _ = timeout(TO_SAY, self.answer.stopped()).await;
    }

    /// Every address by which it may be reached.
    pub(crate) fn member(&self) -> Member {
        let mut addresses = vec![self.address()];
        addresses.extend(self.hello.addresses.iter().filter(|a| **a != self.address()).take(8));
        Member { key: self.hello.key, addresses }
    }

    pub(crate) async fn refuse(mut self, reason: &str) {
        let _ = say(&mut self.answer, &Answer::Refused(reason.into())).await;
        let _ = timeout(TO_SAY, self.answer.stopped()).await;
        self.connection.close(1u8.into(), reason.as_bytes());
    }
}

/// The rank that the others join: rank 0.
pub struct Host {
    pub(crate) socket: Socket,
    pub(crate) join: PublicKey,
    pub(crate) warn: fn(&str),
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
        let (joining, join, warn) = (&mut self.socket.joining, self.join, self.warn);
        runtime()?.block_on(async {
            let next = async {
                loop {
                    let Some(Proven { connection, key, .. }) = joining.recv().await else {
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
        let shelf = Arc::new(Shelf::of(files, place_of)?);
        let own = Member { key: self.socket.key.public()?, addresses: Vec::new() };
        let members: Vec<_> = [own].into_iter().chain(guests.iter().map(Guest::member)).collect();
        let n_ranks = members.len() as u32;
        let deadline = Instant::now() + patience;
        let connections = runtime()?.block_on(async {
            self.socket.admit(members.iter().map(|member| (member.key, Purpose::Rank)))?;
            let (leaves, mut left) = mpsc::channel(1);
            for (rank, guest) in (1..).zip(guests) {
                let (connection, leaves) = (guest.connection.clone(), leaves.clone());
                tokio::spawn(async move {
                    let why = connection.closed().await;
                    let _ = leaves.send(format!("rank {rank} has left ({why})")).await;
                });
                let place = Place { rank, n_ranks, plan: plan.into() };
                let index = Arc::new(AtomicU32::new(rank));
                let serving = guest.seat(place, members.clone(), index, Arc::clone(&shelf), drop);
                tokio::spawn(serving);
            }
            let began = Instant::now();
            let mesh = Mesh { me: Rank(0), members: &members, host: None, meeting: 0 };
            tokio::select! {
                connected = mesh::connect(&mut self.socket, mesh, deadline) => {
                    connected.map_err(|unconnected| unconnected.why)
                }
                Some(missing) = left.recv() => {
                    Err(QuicError::Missing { waited_s: began.elapsed().as_secs(), missing })
                }
            }
        })?;
        self.socket.endpoint.set_server_config(None); // whoever comes now gets no handshake
        let wire = QuicWire::new(Some(self.socket.endpoint), connections, runtime()?.handle());
        Ok(Framed::new(wire, Rank(0), n_ranks))
    }
}

/// Opens a socket that admits nobody yet.
pub(crate) fn open(at: SocketAddr, key: Key, warn: fn(&str)) -> Result<Socket, QuicError> {
    let runtime = runtime()?;
    let _within = runtime.enter();
    let (endpoint, admitted) = (endpoint(at)?, Admitted::default());
    let (to_join, joining) = mpsc::channel(16);
    let (to_rank, ranks) = mpsc::channel(256);
    let takers = Takers { joining: to_join, ranks: to_rank };
    runtime.spawn(accept(endpoint.clone(), admitted.clone(), takers, warn));
    Ok(Socket { endpoint, key, admitted, joining, ranks })
}

/// Reads what a machine asks for. The error says why it is refused.
pub(crate) async fn greet(connection: Connection) -> Result<Guest, String> {
    confirm(&connection, 0).await.ok_or("it has gone")?;
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

async fn say(stream: &mut SendStream, answer: &Answer) -> Option<()> {
    stream.write_all(&serde_json::to_vec(answer).ok()?).await.ok()?;
    stream.finish().ok()
}

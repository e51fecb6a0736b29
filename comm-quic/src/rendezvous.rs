//! The meeting of ranks: a host gives places to those who have its ticket.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use chimera_core::comm::Framed;
use chimera_core::ids::Rank;
use quinn::Connection;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::dial::Member;
use crate::door::{Takers, accept};
use crate::files::{Comer, PlaceOf, Shelf};
use crate::guest::{Guest, Place};
use crate::mesh::{self, Mesh, Socket};
use crate::message::tell;
use crate::net::{runtime, transport};
use crate::relay::{Link, Membership, Pass, endpoint};
use crate::tls::{self, Admitted, Purpose};
use crate::wire::QuicWire;
use crate::{Key, PublicKey, Quic, QuicError};

/// Time for the reason of a failed start to leave this process.
const TO_TELL: Duration = Duration::from_millis(500);
/// Time for a relay to answer.
const TO_ENTER: Duration = Duration::from_secs(5);

/// The rank that the others join: rank 0.
pub struct Host {
    pub(crate) socket: Socket,
    pub(crate) join: PublicKey,
    pub(crate) warn: fn(&str),
}

impl Host {
    /// Listens at an address, and at a relay. `key` is the host's own, and members prove that they have
    /// `join`. Calls `warn` for each refused connection.
    ///
    /// # Errors
    /// If the address is not free, or the relay gives no place.
    pub fn open(
        at: SocketAddr,
        key: Key,
        join: &Key,
        relay: Option<&Pass>,
        warn: fn(&str),
    ) -> Result<Host, QuicError> {
        let join = join.public()?;
        let socket = open(at, key, relay, warn)?;
        if let Some(link) = &socket.link {
            let answered = runtime()?.block_on(async { timeout(TO_ENTER, link.answered()).await });
            let refused = |reason: &str| {
                socket.endpoint.close(0u8.into(), b"it has no relay");
                let (at, reason) = (link.relay.to_string(), reason.into());
                Err(QuicError::Relay { at, reason })
            };
            match answered {
                Ok(Membership::Entered) => {}
                Ok(Membership::Refused(why)) => return refused(why),
                _ => return refused("no answer: is `chimera relay` running there?"),
            }
        }
        socket.admit([(join, Purpose::Join)]);
        Ok(Host { socket, join, warn })
    }

    /// The address that it listens at.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn address(&self) -> Result<SocketAddr, QuicError> {
        self.socket.endpoint.local_addr().map_err(|e| QuicError::Network(e.to_string()))
    }

    /// Waits for the next machine that asks for a place, until the deadline.
    ///
    /// # Errors
    /// If the threads of the network have ended.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Guest>, QuicError> {
        let joining = &mut self.socket.joining;
        runtime()?.block_on(async {
            // A greeting that has begun goes on when the wait is over.
            match timeout(wait, joining.recv()).await {
                Ok(None) => Err(QuicError::Network("nobody listens any more".into())),
                next => Ok(next.ok().flatten()),
            }
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
    /// send files to where `place_of` says. No other machine is admitted after this.
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
        let (began, deadline) = (Instant::now(), Instant::now() + patience);
        let connections = runtime()?.block_on(async {
            self.socket.admit(members.iter().map(|member| (member.key, Purpose::Rank)));
            self.refuse_others();
            let (leaves, mut left) = mpsc::channel(1);
            let (comes, mut come) = mpsc::unbounded_channel();
            for (rank, guest) in (1..).zip(guests) {
                let (connection, leaves) = (guest.connection().clone(), leaves.clone());
                tokio::spawn(async move {
                    let why = connection.closed().await;
                    let _ = leaves.send(format!("rank {rank} has left ({why})")).await;
                });
                let place = Place { rank, n_ranks, plan: plan.into() };
                let index = Arc::new(AtomicU32::new(rank));
                let comes = comes.clone();
                let comes = move |comer| drop(comes.send((rank, comer)));
                let serving = guest.seat(place, members.clone(), index, Arc::clone(&shelf), comes);
                tokio::spawn(serving);
            }
            let all = tokio::select! {
                all = self.all_met(&members, &mut come, deadline) => all,
                Some(missing) = left.recv() => {
                    Err(QuicError::Missing { waited_s: began.elapsed().as_secs(), missing })
                }
            };
            if let Err(why) = &all {
                self.socket.endpoint.close(7u8.into(), why.to_string().as_bytes());
                let _ = timeout(TO_TELL, self.socket.endpoint.wait_idle()).await;
            }
            all
        })?;
        self.socket.endpoint.set_server_config(None); // whoever comes now gets no handshake
        let wire = QuicWire::new(Some(self.socket.endpoint), connections, runtime()?.handle());
        Ok(Framed::new(wire, Rank(0), n_ranks))
    }

    /// Connects with all members, and waits until these are connected with each other. Whoever went on
    /// before would not learn that one of them waits for another that is gone.
    async fn all_met(
        &mut self,
        members: &[Member],
        come: &mut mpsc::UnboundedReceiver<(u32, Comer)>,
        deadline: Instant,
    ) -> Result<BTreeMap<Rank, Connection>, QuicError> {
        let began = Instant::now();
        let mesh = Mesh { me: Rank(0), members, host: None, meeting: 0 };
        let connected = mesh::connect(&mut self.socket, mesh, deadline).await;
        let connections = connected.map_err(|unconnected| unconnected.why)?;
        let mut all = BTreeMap::new();
        while all.len() < connections.len() {
            let next = timeout_at(deadline, come.recv()).await;
            all.extend(next.map_err(|_| QuicError::Missing {
                waited_s: began.elapsed().as_secs(),
                missing: "not all ranks have connected with each other".into(),
            })?);
        }
        for mut comer in all.into_values() {
            let _ = tell(&mut comer.send, &true).await; // the loss of a member is found by its peers
            let _ = comer.send.finish();
        }
        Ok(connections)
    }

    /// Refuses the machines that have come too late. Call it within the runtime.
    fn refuse_others(&mut self) {
        while let Ok(guest) = self.socket.joining.try_recv() {
            tokio::spawn(guest.refuse("its run has begun with other machines"));
        }
    }
}

/// Opens a socket that admits nobody yet.
pub(crate) fn open(
    at: SocketAddr,
    key: Key,
    relay: Option<&Pass>,
    warn: fn(&str),
) -> Result<Socket, QuicError> {
    let runtime = runtime()?;
    let _within = runtime.enter();
    let link = relay.map(|relay| Link::open(relay, &key, warn)).transpose()?;
    let (endpoint, admitted) = (endpoint(at, link.clone())?, Admitted::default());
    let mut server = tls::server(&key, &admitted)?;
    server.transport_config(transport());
    let (to_join, joining) = mpsc::channel(16);
    let (to_rank, ranks) = mpsc::channel(256);
    let takers = Takers { joining: to_join, ranks: to_rank };
    runtime.spawn(accept(endpoint.clone(), admitted.clone(), takers, warn));
    Ok(Socket { endpoint, key, admitted, server, joining, ranks, link })
}

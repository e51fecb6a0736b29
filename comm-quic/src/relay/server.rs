//! The relay itself: a socket, and a loop that passes datagrams on.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::udp::{BATCH_SIZE, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::time::interval;

use super::frame::{FromRelay, N_HEAD, ToRelay, head};
use super::id::Id;
use super::pass::{RelayKey, random};
use super::sessions::{Ended, Limits, Sessions};
use crate::QuicError;
use crate::net::{cannot_open, runtime};

/// Time between two looks for members that are gone.
const SWEEP: Duration = Duration::from_secs(5);
/// Bytes that are received at once: as many as the system may give.
const N_RECEIVED: usize = 1 << 16;

/// A relay that listens.
pub struct Relay {
    socket: Arc<dyn AsyncUdpSocket>,
    sessions: Sessions,
}

/// An event at a relay, for its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelayEvent {
    /// A session has begun.
    Began {
        /// Sessions at this time.
        n_sessions: usize,
    },
    /// All members of a session are gone.
    Ended {
        /// The most members that it had at a time.
        n_members: usize,
        /// Bytes that were passed on.
        n_bytes: u64,
        /// Bytes that were dropped, since they were more than the rate allows.
        n_dropped: u64,
    },
}

impl Relay {
    /// Listens at an address.
    ///
    /// # Errors
    /// If the address is not free.
    pub fn open(at: SocketAddr, key: RelayKey, limits: Limits) -> Result<Relay, QuicError> {
        let _within = runtime()?.enter();
        let error = |e: std::io::Error| cannot_open(at, &e);
        let socket = UdpSocket::bind(at).map_err(error)?;
        let socket = TokioRuntime.wrap_udp_socket(socket).map_err(error)?;
        let sessions = Sessions::new(key, limits, random()?, Instant::now());
        Ok(Relay { socket, sessions })
    }

    /// The address that it listens at.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn address(&self) -> Result<SocketAddr, QuicError> {
        self.socket.local_addr().map_err(|e| QuicError::Network(e.to_string()))
    }

    /// Passes datagrams on for ever. Calls `tell` when sessions begin and end.
    ///
    /// # Errors
    /// If the threads of the network cannot be used.
    pub fn run(self, tell: impl Fn(RelayEvent)) -> Result<(), QuicError> {
        runtime()?.block_on(self.serve(tell));
        Ok(())
    }

    async fn serve(mut self, tell: impl Fn(RelayEvent)) {
        let mut sweep = interval(SWEEP);
        let mut buffers = vec![vec![0; N_RECEIVED]; BATCH_SIZE];
        let mut meta = vec![RecvMeta::default(); BATCH_SIZE];
        loop {
            let mut into: Vec<_> = buffers.iter_mut().map(|b| IoSliceMut::new(b)).collect();
            let received = tokio::select! {
                received = poll_fn(|cx| self.socket.poll_recv(cx, &mut into, &mut meta)) => received,
                _ = sweep.tick() => {
                    self.sessions.sweep(Instant::now()).into_iter().map(RelayEvent::from).for_each(&tell);
                    continue;
                }
            };
            let Ok(n) = received else { continue }; // of a datagram that could not be sent
            for (buffer, meta) in buffers.iter_mut().zip(&meta).take(n) {
                let n_before = self.sessions.n_sessions();
                self.pass_on(&mut buffer[..meta.len], meta).await;
                let n_sessions = self.sessions.n_sessions();
                if n_sessions > n_before {
                    tell(RelayEvent::Began { n_sessions });
                }
            }
        }
    }

    /// Takes the datagrams of an address, which have `stride` bytes each. Those for one member go on
    /// together.
    async fn pass_on(&mut self, mut rest: &mut [u8], meta: &RecvMeta) {
        let (from, now) = (meta.addr, Instant::now());
        let stride = meta.stride.max(1);
        let most = self.socket.max_transmit_segments();
        while !rest.is_empty() {
            let first = &rest[..stride.min(rest.len())];
            let question = ToRelay::read(first);
            let n = match question {
                Some(ToRelay::Carry(id)) => {
                    let is_for = |datagram: &&[u8]| datagram.starts_with(&head(id));
                    rest.chunks(stride).take(most).take_while(is_for).map(<[u8]>::len).sum()
                }
                _ => first.len(),
            };
            let (datagrams, others) = rest.split_at_mut(n);
            rest = others;
            match question {
                Some(ToRelay::Carry(to)) => {
                    let Some((destination, src_ip, of)) = self.sessions.route(from, to, n, now)
                    else {
                        continue;
                    };
                    datagrams.chunks_mut(stride).for_each(|datagram| put_head(datagram, of));
                    let (segment_size, ecn) = ((n > stride).then_some(stride), meta.ecn);
                    let contents = &*datagrams;
                    self.send(&Transmit { destination, ecn, contents, segment_size, src_ip }).await;
                }
                Some(ToRelay::Ask(wanted)) => {
                    self.answer(meta, &self.sessions.prove(from, &wanted, now)).await;
                }
                Some(ToRelay::Enter(wanted, proof)) => {
                    if let Some(answer) =
                        self.sessions.enter((from, meta.dst_ip), &wanted, proof, now)
                    {
                        self.answer(meta, &answer).await;
                    }
                }
                None => {}
            }
        }
    }

    async fn answer(&self, meta: &RecvMeta, answer: &FromRelay) {
        let contents = answer.to_bytes();
        let (destination, src_ip) = (meta.addr, meta.dst_ip);
        let transmit =
            Transmit { destination, ecn: None, contents: &contents, segment_size: None, src_ip };
        self.send(&transmit).await;
    }

    /// Sends, and waits while the system takes no more. What cannot be sent is lost, as in any network.
    async fn send(&self, transmit: &Transmit<'_>) {
        let is_full = |e: &std::io::Error| e.kind() == ErrorKind::WouldBlock;
        while self.socket.try_send(transmit).as_ref().is_err_and(is_full) {
            let mut poller = Arc::clone(&self.socket).create_io_poller();
            if poll_fn(|cx| poller.as_mut().poll_writable(cx)).await.is_err() {
                return;
            }
        }
    }
}

/// Names the sender of a datagram, where its receiver was named.
fn put_head(datagram: &mut [u8], of: Id) {
    if let Some(place) = datagram.first_chunk_mut::<N_HEAD>() {
        *place = head(of);
    }
}

impl From<Ended> for RelayEvent {
    fn from(ended: Ended) -> RelayEvent {
        let Ended { n_members, n_bytes, n_dropped } = ended;
        RelayEvent::Ended { n_members, n_bytes, n_dropped }
    }
}

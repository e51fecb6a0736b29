//! Frames between ranks. Each frame is a stream of its own, so a large one does not hold up others.

mod held;
mod meter;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chimera_core::comm::{Traffic, Wire};
use chimera_core::ids::Rank;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::held::{Held, MAX_UNDER_WAY, MAX_WHOLE, SPARE};
use self::meter::Meter;
use crate::probe::watch;

/// Bytes of a frame that every rank may send; tensors may be longer, as far as they are expected.
const MAX_CONTROL: usize = 64 << 20;
/// Frames up to this length go before longer ones.
const SHORT: usize = 64 << 10;
/// Frames that wait for the rank to take them, before its peer has to wait.
const MAX_WAITING: usize = 64;
/// Time for peers to take the last frames of a rank that leaves.
const TO_LEAVE: Duration = Duration::from_secs(5);
/// Time for the ends of connections to leave this process.
const TO_TELL: Duration = Duration::from_millis(500);

/// This rank's connections to all others.
pub struct QuicWire {
    /// The socket, if it closes with the wire. Its port is then free again.
    endpoint: Mutex<Option<Endpoint>>,
    peers: BTreeMap<Rank, Peer>,
    runtime: Handle,
    /// Bytes that a frame may have.
    limit: Arc<AtomicUsize>,
    under_way: Arc<UnderWay>,
    /// The connection by which this rank joined: the host takes its end for that of the rank.
    joined: Option<Connection>,
}

struct Peer {
    connection: Connection,
    frames: Mutex<mpsc::Receiver<io::Result<Vec<u8>>>>,
    held: Arc<Held>,
    /// Bytes of long frames that may still be sent.
    room: Arc<Semaphore>,
    n_sent: AtomicU64,
    meter: Arc<Meter>,
}

/// Number of frames that their receivers do not have yet.
#[derive(Default)]
struct UnderWay {
    n: Mutex<usize>,
    fewer: Condvar,
}

impl QuicWire {
    /// Begins to read from all connections.
    pub(crate) fn new(
        endpoint: Option<Endpoint>,
        connections: BTreeMap<Rank, Connection>,
        runtime: &Handle,
    ) -> QuicWire {
        let limit = Arc::new(AtomicUsize::new(MAX_CONTROL));
        let peer = |(rank, connection): (Rank, Connection)| {
            let (sender, frames) = mpsc::channel(MAX_WAITING);
            let held = Arc::new(Held::new(SPARE, MAX_WHOLE));
            let inbound = Inbound {
                sender,
                held: Arc::clone(&held),
                limit: Arc::clone(&limit),
                n_read: AtomicU64::new(0),
                read: Notify::new(),
            };
            runtime.spawn(watch(connection.clone()));
            runtime.spawn(receive(connection.clone(), Arc::new(inbound)));
            let (frames, room) = (Mutex::new(frames), Arc::new(Semaphore::new(MAX_UNDER_WAY)));
            let (n_sent, meter) = (AtomicU64::new(0), Arc::default());
            (rank, Peer { connection, frames, held, room, n_sent, meter })
        };
        let peers = connections.into_iter().map(peer).collect();
        let (endpoint, under_way) = (Mutex::new(endpoint), Arc::default());
        QuicWire { endpoint, peers, runtime: runtime.clone(), limit, under_way, joined: None }
    }

    /// Keeps the connection by which this rank joined, until it leaves.
    pub(crate) fn joined_by(self, host: Connection) -> QuicWire {
        QuicWire { joined: Some(host), ..self }
    }

    fn peer(&self, rank: Rank) -> io::Result<&Peer> {
        let none = || io::Error::new(ErrorKind::InvalidInput, format!("{rank} is not connected"));
        self.peers.get(&rank).ok_or_else(none)
    }
}

impl Wire for QuicWire {
    fn send(&self, to: Rank, frame: &[u8]) -> io::Result<()> {
        let peer = self.peer(to)?;
        if peer.connection.close_reason().is_some() {
            return Err(ErrorKind::NotConnected.into());
        }
        let number = peer.n_sent.fetch_add(1, Ordering::Relaxed);
        let priority = priority(frame.len(), number);
        let (connection, frame) = (peer.connection.clone(), frame.to_vec());
        let (under_way, meter) = (Arc::clone(&self.under_way), Arc::clone(&peer.meter));
        let room = Arc::clone(&peer.room);
        meter.begin(frame.len(), Instant::now());
        under_way.change(|n| *n += 1);
        self.runtime.spawn(async move {
            let _room = match frame.len() {
                0..=SHORT => None,
                n_bytes => room.acquire_many(n_bytes.min(MAX_UNDER_WAY) as u32).await.ok(),
            };
            let _ = carry(&connection, frame, priority).await; // a peer that is gone is found by reading
            meter.end(Instant::now());
            under_way.change(|n| *n -= 1);
        });
        Ok(())
    }

    fn recv(&self, from: Rank) -> io::Result<Vec<u8>> {
        let peer = self.peer(from)?;
        let mut frames = peer.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = frames.blocking_recv().unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into()));
        frame.inspect(|frame| peer.held.take(frame.len()))
    }

    fn expect_frames(&self, n_bytes: usize) {
        self.limit.fetch_max(n_bytes, Ordering::Relaxed);
    }

    fn take_traffic(&self) -> Vec<(Rank, Traffic)> {
        let (now, used) = (Instant::now(), self.peers.iter());
        let used = used.map(|(to, peer)| (to, peer.meter.take(now, peer.connection.min_rtt())));
        used.filter_map(|(to, traffic)| Some((*to, traffic?))).collect()
    }

    fn flush(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut n = self.under_way.n.lock().unwrap_or_else(PoisonError::into_inner);
        while *n > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.under_way.fewer.wait_timeout(n, left);
            n = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn close(&self) {
        let ends: Vec<_> = self
            .peers
            .values()
            .map(|peer| {
                let (connection, n_sent) =
                    (peer.connection.clone(), peer.n_sent.load(Ordering::Relaxed));
                self.runtime.spawn(async move {
                    let _ = timeout(TO_LEAVE, end(&connection, n_sent)).await;
                    connection.close(0u8.into(), b"left");
                })
            })
            .collect();
        self.runtime.block_on(async {
            for end in ends {
                let _ = end.await;
            }
            self.joined.iter().for_each(|host| host.close(0u8.into(), b"left"));
            let endpoint = self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(endpoint) = endpoint {
                endpoint.close(0u8.into(), b"left");
                let _ = timeout(TO_TELL, endpoint.wait_idle()).await;
            }
        });
    }
}

impl UnderWay {
    fn change(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.n.lock().unwrap_or_else(PoisonError::into_inner));
        self.fewer.notify_all();
    }
}

/// Returns the priority of a frame among those of its connection. Of long ones the oldest goes first,
/// with what is sent again of it: its receiver can then work while the next is under way.
fn priority(n_bytes: usize, number: u64) -> i32 {
    let age = (number % (1 << 31)) as i32; // it fits
    if n_bytes <= SHORT { 1 } else { -age }
}

/// Sends a frame, and waits until its receiver has it.
async fn carry(connection: &Connection, frame: Vec<u8>, priority: i32) -> io::Result<()> {
    let mut stream = connection.open_uni().await?;
    stream.set_priority(priority).map_err(io::Error::from)?;
    stream.write_chunk(frame.into()).await?;
    stream.finish().map_err(io::Error::from)?;
    stream.stopped().await.map_err(io::Error::other)?;
    Ok(())
}

/// Says that `n_sent` frames were all, and waits until the peer has taken them, or is gone.
async fn end(connection: &Connection, n_sent: u64) -> io::Result<()> {
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(&n_sent.to_le_bytes()).await?;
    send.finish().map_err(io::Error::from)?;
    recv.read_to_end(1).await.map_err(io::Error::other)?;
    Ok(())
}

/// The receiving side of a connection.
struct Inbound {
    sender: mpsc::Sender<io::Result<Vec<u8>>>,
    held: Arc<Held>,
    limit: Arc<AtomicUsize>,
    /// Frames that were read so far.
    n_read: AtomicU64,
    /// Notifies waiting threads after each read frame.
    read: Notify,
}

/// Reads all frames of a peer, until all that it sent are read, or it is gone.
async fn receive(connection: Connection, inbound: Arc<Inbound>) {
    let mut frames = JoinSet::new();
    let mut ends = JoinSet::new();
    let why = loop {
        tokio::select! {
            stream = connection.accept_uni(), if inbound.held.has_room() => match stream {
                Ok(stream) => drop(frames.spawn(Arc::clone(&inbound).read(stream, connection.clone()))),
                Err(error) => break error,
            },
            stream = connection.accept_bi() => match stream {
                Ok((send, recv)) if ends.is_empty() => drop(ends.spawn(Arc::clone(&inbound).end(send, recv))),
                Ok(_) => connection.close(2u8.into(), b"it ended twice"),
                Err(error) => break error,
            },
            Some(_) = frames.join_next(), if !frames.is_empty() => {}
            () = inbound.held.taken.notified() => {}
        }
    };
    while frames.join_next().await.is_some() {} // what had arrived before is still taken
    let _ =
        inbound.sender.send(Err(io::Error::new(ErrorKind::UnexpectedEof, why.to_string()))).await;
}

impl Inbound {
    async fn read(self: Arc<Inbound>, mut stream: RecvStream, connection: Connection) {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut part = self.held.part(limit);
        loop {
            match stream.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) => {
                    if let Err(why) = part.append(&chunk.bytes) {
                        drop(part);
                        let reason = why.in_words(limit);
                        connection.close(2u8.into(), reason.as_bytes());
                        let refused = io::Error::new(ErrorKind::InvalidData, reason);
                        let _ = self.sender.send(Err(refused)).await;
                        return;
                    }
                }
                Ok(None) => break,
                Err(_) => return, // the connection is lost
            }
        }
        let _ = self.sender.send(Ok(part.end())).await;
        self.n_read.fetch_add(1, Ordering::Release);
        self.read.notify_waiters();
    }

    /// Ends the frames once all that the peer has sent are read.
    async fn end(self: Arc<Inbound>, mut send: SendStream, mut recv: RecvStream) {
        let mut n_sent = [0; 8];
        if recv.read_exact(&mut n_sent).await.is_err() {
            return;
        }
        loop {
            let read = self.read.notified();
            if self.n_read.load(Ordering::Acquire) >= u64::from_le_bytes(n_sent) {
                break;
            }
            read.await;
        }
        let _ = self.sender.send(Err(ErrorKind::UnexpectedEof.into())).await;
        let _ = send.finish();
        let _ = send.stopped().await;
    }
}

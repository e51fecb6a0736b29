//! A socket of QUIC by which some peers are reached through a relay. They have addresses that
//! [stand for their ids](super::id).

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, TokioRuntime, UdpPoller};

use super::frame::{FromRelay, N_HEAD, head};
use super::id::Id;
use super::link::Link;
use crate::QuicError;
use crate::net::cannot_open;

/// Bytes that are received from the relay at once: as many as the system may give.
const N_RECEIVED: usize = 1 << 16;

/// Opens a socket at an address, by which peers may also be reached through a relay. Call it within the
/// [runtime](crate::net::runtime).
pub(crate) fn endpoint(at: SocketAddr, link: Option<Arc<Link>>) -> Result<Endpoint, QuicError> {
    let error = |e: std::io::Error| cannot_open(at, &e);
    let socket = std::net::UdpSocket::bind(at).map_err(error)?;
    let (config, runtime) = (EndpointConfig::default(), Arc::new(TokioRuntime));
    let Some(link) = link else {
        return Endpoint::new(config, None, socket, runtime).map_err(error);
    };
    let socket = runtime.wrap_udp_socket(socket).map_err(error)?;
    let socket = RelayedSocket::new(socket, link).map_err(error)?;
    Endpoint::new_with_abstract_socket(config, None, Arc::new(socket), runtime).map_err(error)
}

/// A socket for direct ways, and a link to a relay.
#[derive(Debug)]
struct RelayedSocket {
    direct: Arc<dyn AsyncUdpSocket>,
    link: Arc<Link>,
    is_v6: bool,
    inbox: Mutex<Inbox>,
}

/// Datagrams of the relay that QUIC has not taken.
#[derive(Debug)]
struct Inbox {
    bytes: Vec<u8>,
    arrived: VecDeque<(Id, Range<usize>)>,
    ecn: Option<EcnCodepoint>,
    /// Whether the relay comes first at the next look: neither way holds up the other.
    is_turn: bool,
}

impl RelayedSocket {
    fn new(direct: Arc<dyn AsyncUdpSocket>, link: Arc<Link>) -> io::Result<RelayedSocket> {
        let is_v6 = direct.local_addr()?.is_ipv6();
        let (bytes, arrived) = (vec![0; N_RECEIVED], VecDeque::new());
        let inbox = Mutex::new(Inbox { bytes, arrived, ecn: None, is_turn: true });
        Ok(RelayedSocket { direct, link, is_v6, inbox })
    }

    /// Takes datagrams of other members out of the relay's, and answers of the relay itself.
    fn poll_relayed(
        &self,
        cx: &mut Context<'_>,
        inbox: &mut Inbox,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<usize> {
        while inbox.arrived.is_empty() {
            let (mut into, mut found) =
                ([IoSliceMut::new(&mut inbox.bytes)], [RecvMeta::default()]);
            let received = ready!(self.link.socket.poll_recv(cx, &mut into, &mut found));
            if received.is_err() {
                cx.waker().wake_by_ref(); // the next look may find a datagram
                return Poll::Pending;
            }
            let [RecvMeta { addr, len, stride, ecn, .. }] = found;
            if addr == self.link.relay {
                inbox.ecn = ecn;
                inbox.sort(len, stride, |answer| self.link.take(&answer));
            }
        }
        Poll::Ready(inbox.give(bufs, meta, |id| id.address(self.is_v6)))
    }
}

impl Inbox {
    /// Sorts `len` bytes, which are datagrams of `stride` bytes each.
    fn sort(&mut self, len: usize, stride: usize, answer: impl Fn(FromRelay)) {
        for begin in (0..len).step_by(stride.max(1)) {
            let end = len.min(begin + stride);
            match FromRelay::read(&self.bytes[begin..end]) {
                Some(FromRelay::Carry(id)) => self.arrived.push_back((id, begin + N_HEAD..end)),
                Some(other) => answer(other),
                None => {}
            }
        }
    }

    /// Gives datagrams to QUIC, as many as there is room for.
    fn give(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
        address: impl Fn(Id) -> SocketAddr,
    ) -> usize {
        let mut n = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Some((id, range)) = self.arrived.pop_front() else { break };
            let datagram = &self.bytes[range];
            let len = datagram.len().min(buf.len());
            buf[..len].copy_from_slice(&datagram[..len]);
            let (addr, ecn) = (address(id), self.ecn);
            *meta = RecvMeta { addr, len, stride: len, ecn, dst_ip: None };
            n += 1;
        }
        n
    }
}

impl AsyncUdpSocket for RelayedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let direct = Arc::clone(&self.direct).create_io_poller();
        let relayed = Arc::clone(&self.link.socket).create_io_poller();
        Box::pin(BothWritable { direct, relayed })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(id) = Id::at(transmit.destination) else { return self.direct.try_send(transmit) };
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let n_segments = transmit.contents.len().div_ceil(segment);
        let mut bytes = Vec::with_capacity(transmit.contents.len() + n_segments * N_HEAD);
        for datagram in transmit.contents.chunks(segment) {
            bytes.extend(head(id));
            bytes.extend(datagram);
        }
        self.link.send(&bytes, transmit.segment_size.map(|n| n + N_HEAD), transmit.ecn)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let is_turn = std::mem::replace(&mut inbox.is_turn, false);
        if is_turn && let Poll::Ready(n) = self.poll_relayed(cx, &mut inbox, bufs, meta) {
            return Poll::Ready(Ok(n));
        }
        inbox.is_turn = true;
        if let Poll::Ready(received) = self.direct.poll_recv(cx, bufs, meta) {
            return Poll::Ready(received);
        }
        if is_turn {
            return Poll::Pending;
        }
        self.poll_relayed(cx, &mut inbox, bufs, meta).map(Ok)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.direct.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.direct.max_transmit_segments().min(self.link.socket.max_transmit_segments())
    }

    fn max_receive_segments(&self) -> usize {
        self.direct.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.direct.may_fragment() || self.link.socket.may_fragment()
    }
}

/// Waits until both ways take datagrams.
#[derive(Debug)]
struct BothWritable {
    direct: Pin<Box<dyn UdpPoller>>,
    relayed: Pin<Box<dyn UdpPoller>>,
}

impl UdpPoller for BothWritable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.direct.as_mut().poll_writable(cx))?;
        self.relayed.as_mut().poll_writable(cx)
    }
}

//! The runtime of the QUIC library, on threads of this crate, and its settings.

mod congestion;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quinn::{TransportConfig, VarInt};
use tokio::runtime::{Builder, Runtime};

use self::congestion::Tolerant;
use crate::QuicError;

/// A connection without any packet for this long is lost: its peer has died, or sleeps.
pub(crate) const IDLE: Duration = Duration::from_secs(8);
/// An idle connection is used this often, so that it stays open.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Bytes that may be under way in one stream, and in all streams of a connection. A link of 1 Gbit/s
/// with a round trip of 100 ms holds 12.5 MB.
const STREAM_WINDOW: u32 = 16 << 20;
const WINDOW: u32 = 64 << 20;
/// Messages that may be under way from one rank to another.
const MAX_STREAMS: u32 = 1024;
/// Threads of the runtime.
const N_THREADS: usize = 2;

/// Returns the runtime of this process.
pub(crate) fn runtime() -> Result<&'static Runtime, QuicError> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let build = || {
        let mut builder = Builder::new_multi_thread();
        let built = builder.worker_threads(N_THREADS).thread_name("quic").enable_all().build();
        built.map_err(|error| error.to_string())
    };
    let runtime = RUNTIME.get_or_init(build).as_ref();
    runtime.map_err(|reason| QuicError::Network(format!("cannot start its threads: {reason}")))
}

/// Returns the error of a socket that the system does not open.
pub(crate) fn cannot_open(at: impl Display, error: &std::io::Error) -> QuicError {
    QuicError::Network(format!("cannot open UDP {at}: {error}"))
}

/// Returns the limits and timeouts of every connection.
pub(crate) fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(IDLE.try_into().ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .max_concurrent_uni_streams(VarInt::from_u32(MAX_STREAMS))
        .max_concurrent_bidi_streams(VarInt::from_u32(4))
        .congestion_controller_factory(Arc::new(Tolerant))
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

/// Returns the addresses of this machine by which others may reach `port`, the loopback last.
pub fn addresses(port: u16) -> Vec<SocketAddr> {
    let mut found: Vec<IpAddr> = interfaces().into_iter().filter(is_reachable).collect();
    found.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    found.dedup();
    found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Addresses within one link need the number of an interface, which differs between machines.
fn is_reachable(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_loopback(),
    }
}

#[cfg(unix)]
fn interfaces() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    all.filter_map(|interface| interface.address.and_then(ip)).collect()
}

/// The system says by which address it reaches other networks.
#[cfg(not(unix))]
fn interfaces() -> Vec<IpAddr> {
    let outside = || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?; // sends nothing
        Some(socket.local_addr().ok()?.ip())
    };
    outside().into_iter().chain([std::net::Ipv4Addr::LOCALHOST.into()]).collect()
}

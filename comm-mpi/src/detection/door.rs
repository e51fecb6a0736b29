//! TCP connections between ranks on different hosts, outside of MPI.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

/// Time to connect: longer than the retransmission of a lost packet.
const TO_CONNECT: Duration = Duration::from_secs(4);
/// Time for the other end, which may be busy, to answer.
const TO_ANSWER: Duration = Duration::from_secs(10);
/// Silence after which the system probes the other end, so that no firewall forgets the connection.
#[cfg(target_os = "linux")]
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A secret that proves that the sender is a rank of the job.
pub(crate) type Token = [u8; 16];
/// Bytes of the first message on a connection: a rank and its token.
pub(crate) const HELLO: usize = size_of::<u32>() + size_of::<Token>();

/// The addresses of a listening rank, and its token. MPI carries them to the others.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Door {
    pub(crate) token: Token,
    /// Empty if nobody is to connect.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Door {
    /// Returns a door that accepts no connections.
    pub(crate) fn closed() -> Door {
        Door { token: rand::random(), addresses: Vec::new() }
    }

    /// Listens on every address of this host.
    pub(crate) fn open() -> io::Result<(Door, TcpListener)> {
        let any = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let any = any.map(|address| SocketAddr::new(address, 0));
        let listener = TcpListener::bind(&any[..])?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let addresses = addresses()?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        Ok((Door { addresses, ..Door::closed() }, listener))
    }

    /// Connects `me`, whose own door has `token`, to the rank that listens here.
    pub(crate) fn enter(&self, me: Rank, token: &Token) -> io::Result<TcpStream> {
        let mut last = ErrorKind::AddrNotAvailable.into();
        for address in &self.addresses {
            match self.greet(address, me, token) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn greet(&self, address: &SocketAddr, me: Rank, token: &Token) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(address, TO_CONNECT)?;
        stream.set_read_timeout(Some(TO_ANSWER))?;
        stream.write_all(&hello(me, token))?;
        let mut answer = Token::default();
        stream.read_exact(&mut answer)?;
        if answer != self.token {
            return Err(ErrorKind::InvalidData.into()); // another program has this address here
        }
        prepare(&stream)?;
        Ok(stream)
    }
}

/// Makes a connection non-blocking, and keeps it alive.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        rustix::net::sockopt::set_socket_keepalive(stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    }
    Ok(())
}

fn hello(me: Rank, token: &Token) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..4].copy_from_slice(&me.0.to_le_bytes());
    hello[4..].copy_from_slice(token);
    hello
}

/// Splits a hello into its rank and token.
pub(crate) fn read_hello(hello: &[u8; HELLO]) -> (Rank, Token) {
    let ([r0, r1, r2, r3, token @ ..],) = (*hello,);
    (Rank(u32::from_le_bytes([r0, r1, r2, r3])), token)
}

/// Returns this host's addresses: loopback ones last, and IPv4 before IPv6.
#[cfg(unix)]
fn addresses() -> io::Result<Vec<IpAddr>> {
    use nix::net::if_::InterfaceFlags;

    let mut found: Vec<IpAddr> = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()? {
        let Some(address) = interface.address else { continue };
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| address.ip());
        // A link-local address means nothing without its link.
        let v6 = v6.filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::V6);
        if interface.flags.contains(InterfaceFlags::IFF_UP) {
            found.extend(v4.or(v6));
        }
    }
    found.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    Ok(found)
}

#[cfg(not(unix))]
fn addresses() -> io::Result<Vec<IpAddr>> {
    Err(ErrorKind::Unsupported.into())
}

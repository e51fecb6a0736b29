//! How ranks of different hosts reach each other beside MPI.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

/// For a connection to be made: longer than a packet that is lost and sent again.
const TO_CONNECT: Duration = Duration::from_secs(4);
/// For the other end to answer, which may be busy.
const TO_ANSWER: Duration = Duration::from_secs(10);
/// Silence after which the system asks whether the other end is there, so that no firewall forgets the connection.
#[cfg(target_os = "linux")]
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Proves that the sender is a rank of the job.
pub(crate) type Token = [u8; 16];
/// A rank and its token: what it says first.
pub(crate) const HELLO: usize = size_of::<u32>() + size_of::<Token>();

/// Where a rank listens, and how it is known that it is the one. MPI carries it to the others.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Door {
    pub(crate) token: Token,
    /// Empty if nobody is to connect to it.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Door {
    /// A door that stays closed.
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

    /// A connection to the rank behind the door, for `me` whose own door has `token`.
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

/// Makes a connection that never blocks, and that lasts.
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

/// Who says so, and by which token.
pub(crate) fn read_hello(hello: &[u8; HELLO]) -> (Rank, Token) {
    let ([r0, r1, r2, r3, token @ ..],) = (*hello,);
    (Rank(u32::from_le_bytes([r0, r1, r2, r3])), token)
}

/// The addresses of this host, those by which other hosts may reach it first, and of these those of IPv4.
#[cfg(unix)]
fn addresses() -> io::Result<Vec<IpAddr>> {
    use nix::net::if_::InterfaceFlags;

    let mut found: Vec<IpAddr> = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()? {
        let Some(address) = interface.address else { continue };
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| address.ip());
        // An address of one link is none without that link.
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

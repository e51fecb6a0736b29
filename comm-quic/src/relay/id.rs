//! Ids of members of a session, and the addresses that stand for them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use crate::PublicKey;

/// Bytes of an id.
pub(crate) const N_ID: usize = 5;
/// The first byte of addresses that stand for ids. No network routes them (RFC 1112, section 4).
const RESERVED: u8 = 240;

/// A member of a session. Its bytes are three of an IPv4 address and a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Id(pub(crate) [u8; N_ID]);

impl Id {
    /// Returns the id of a member with this key.
    pub(crate) fn of(key: PublicKey) -> Id {
        let hash = blake3::derive_key("chimera quic 2026 id at a relay", &key.to_bytes());
        let [a, b, c, d, e, ..] = hash;
        Id([a, b, c, d, if d == 0 { e | 1 } else { e }]) // QUIC refuses port 0
    }

    /// Returns the address by which QUIC knows the member, for a socket of IPv4 or IPv6.
    pub(crate) fn address(self, is_v6: bool) -> SocketAddr {
        let Id([a, b, c, d, e]) = self;
        let (ip, port) = (Ipv4Addr::new(RESERVED, a, b, c), u16::from_be_bytes([d, e]));
        if is_v6 {
            SocketAddrV6::new(ip.to_ipv6_mapped(), port, 0, 0).into()
        } else {
            SocketAddr::new(ip.into(), port)
        }
    }

    /// Returns the id for which an address stands, if it does for one.
    pub(crate) fn at(address: SocketAddr) -> Option<Id> {
        let IpAddr::V4(ip) = address.ip().to_canonical() else { return None };
        let ([first, a, b, c], [d, e]) = (ip.octets(), address.port().to_be_bytes());
        (first == RESERVED).then_some(Id([a, b, c, d, e]))
    }
}

/// Returns true if an address stands for a member at a relay.
pub(crate) fn is_relayed(address: &SocketAddr) -> bool {
    Id::at(*address).is_some()
}

/// Returns an address in words.
pub(crate) fn shown(address: SocketAddr) -> String {
    match Id::at(address) {
        Some(Id([a, b, c, d, e])) => format!("relayed {a:02x}{b:02x}{c:02x}{d:02x}{e:02x}"),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    #[test]
    fn an_address_stands_for_one_id() {
        for nth in 0..1000 {
            let key = Key::derived("a", &nth.to_string()).public().expect("a key");
            let id = Id::of(key);
            for is_v6 in [false, true] {
                let address = id.address(is_v6);
                assert_eq!(address.is_ipv6(), is_v6);
                assert_ne!(address.port(), 0);
                assert_eq!(Id::at(address), Some(id));
            }
        }
        for real in ["10.0.0.1:7000", "[fe80::1]:7000", "127.0.0.1:1"] {
            assert!(!is_relayed(&real.parse().expect("an address")), "{real}");
        }
    }
}
